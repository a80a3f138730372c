"""How the house and a site start the process of a job: as FLARE does, but guarded (process.py)."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

from concilium.transports.flare.hardening import GUARDED


class SiteLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Named in resources.json of a site's kit (hardening.py)."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        return _guard_command(super().get_command(job_meta, fl_ctx), fl_ctx)


class HouseLauncher(ServerProcessJobLauncher):  # type: ignore[misc]
    """Named in resources.json of the house's kit (hardening.py)."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        return _guard_command(super().get_command(job_meta, fl_ctx), fl_ctx)


def _guard_command(command: str, fl_ctx: Any) -> str:
    """The same command, its module run by the guarded process."""
    flag, module = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)[JobProcessArgs.EXE_MODULE]
    before, after = command.split(f"{flag} {module}", 1)
    return f"{before}{flag} {GUARDED} {module}{after}"
