"""How a site's FLARE process starts the process of a job: as FLARE does, but a killed one ends nothing else.

With FLARE's own launcher a job's process that is killed fails the whole job, at all hospitals, in two seconds. The
house decides that itself (run.py): it goes on with the rest, or stops with the site's name.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher


class SoftExitLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Named in resources.json of a site's kit (hardening.py)."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Any:
        handle = super().launch_job(job_meta, fl_ctx)
        poll = handle.poll

        def poll_softly() -> Any:
            code = handle.adapter.poll()
            return JobReturnCode.UNKNOWN if code is not None and code < 0 else poll()  # by a signal

        handle.poll = poll_softly
        return handle
