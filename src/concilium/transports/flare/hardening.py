"""What a kit must be like so that no code travels with a job: four files, written and checked by the product.

Who is protected, and from whom: the hospital, from whoever may submit jobs. A job that carries code is refused
("byoc"), one that names any class but ours is not built, nobody gets a shell, and no log leaves the hospital. The files
are those of FLARE (`local/`); a hospital's own installation writes them, and will not start on others.

They are the second lock. FLARE asks them only where a message of the house says so, so that they do not hold against
the house itself, nor against members who speak in its name. What does is in the processes (process.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from concilium.errors import KitError

Role = Literal["site", "house", "person"]

SITE_CLASS = "concilium.transports.flare.site_job.FlareSite"
HOUSE_CLASS = "concilium.transports.flare.house_job.FlareHouse"
# Every process of FLARE starts by this module, which closes what FLARE leaves open (process.py).
GUARDED = "concilium.transports.flare.process"

NOTHING = dict.fromkeys(
    (
        "submit_job",
        "clone_job",
        "manage_job",
        "download_job",
        "view",
        "operate",
        "shell_commands",
        "app_command",
        "byoc",
        "server-predeployed-flwr",
    ),
    "none",
)

# A parent and the processes of its jobs talk over a port of this machine. FLARE leaves it in clear text, open to every
# user of the machine; so only who holds a certificate of the network is let in.
LOCAL_CHANNEL: dict[str, Any] = {
    "internal": {"scheme": "tcp", "resources": {"host": "localhost", "connection_security": "mtls"}}
}


def _write_rules(role: Role, folder: Path) -> dict[str, dict[str, Any]]:
    """The files of `local/`, by name; `folder` is where the kit is."""
    if role == "site":
        # Of people outside, anybody may submit a job (one of ours, which the gate then answers) and nothing else.
        lead = NOTHING | {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}
        resources = _write_site_resources()
    else:
        lead = NOTHING | {
            "submit_job": "any",
            "manage_job": "n:submitter",
            "download_job": "n:submitter",
            "app_command": "n:submitter",
            "view": "any",
        }
        resources = _write_house_resources(folder)
    nobody = {"project_admin": NOTHING, "org_admin": NOTHING, "member": NOTHING}
    return {
        "authorization.json": {"format_version": "1.0", "permissions": {**nobody, "lead": lead}},
        "resources.json": resources,
        "log_config.json": _write_log_config(),
        "comm_config.json": LOCAL_CHANNEL,
    }


def _write_site_resources() -> dict[str, Any]:
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [SITE_CLASS],
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [
            {
                "id": "resource_manager",
                "path": "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
                "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
            },
            {
                "id": "resource_consumer",
                "path": "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
                "args": {},
            },
            {
                "id": "process_launcher",
                "path": "concilium.transports.flare.launcher.SiteLauncher",
                "args": {},
            },
        ],
    }


def _write_house_resources(folder: Path) -> dict[str, Any]:
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [HOUSE_CLASS],
        "allow_log_streaming": False,
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 1000,
                "heart_beat_timeout": 60,
                "admin_timeout": 10.0,
            }
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {
                "uri_root": "/",
                "storage": {"path": storage, "args": {"root_dir": f"{folder}/snapshots", "uri_root": "/"}},
            },
        },
        "components": [
            {
                "id": "job_scheduler",
                "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                "args": {"max_jobs": 8},
            },
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": {"uri_root": f"{folder}/jobs", "job_store_id": "job_store"},
            },
            {"id": "job_store", "path": storage},
            {
                "id": "process_launcher",
                "path": "concilium.transports.flare.launcher.HouseLauncher",
                "args": {},
            },
        ],
    }


def _write_log_config() -> dict[str, Any]:
    """FLARE's own messages go to log.txt of the kit and of each job, warnings and worse; ours to concilium.log."""
    plain = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    rotated = {
        "class": "logging.handlers.RotatingFileHandler",
        "formatter": "plain",
        "filters": ["polling"],
        "mode": "a",
        "maxBytes": 20971520,
        "backupCount": 5,
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": plain}},
        "filters": {"polling": {"()": "concilium.transports.flare.own_log.PollingFilter"}},
        "handlers": {
            "console": {
                "class": "logging.StreamHandler",
                "level": "ERROR",
                "filters": ["polling"],
                "formatter": "plain",
                "stream": "ext://sys.stderr",
            },
            "file": {**rotated, "level": "WARNING", "filename": "log.txt"},
        },
        "loggers": {"root": {"level": "WARNING", "handlers": ["console", "file"]}},
    }


def harden(folder: Path, role: Role) -> None:
    """Write the rules of a kit where there are none; KitError where there are others than ours."""
    local = folder / "local"
    for name, rules in _write_rules(role, folder).items():
        path = local / name
        if not path.exists():
            local.mkdir(exist_ok=True)
            path.write_text(json.dumps(rules, indent=2) + "\n", encoding="utf-8")
        elif not _is_as_written(path, rules):
            raise KitError(
                f"{path}: these are not the rules that concilium writes, under which no code comes with a job and no "
                "log leaves; delete the file, and it is written anew"
            )
    for path in sorted(local.glob("*.default")) + sorted(local.glob("*.sample")):
        path.unlink()
    custom = local / "custom"
    if custom.exists():
        raise KitError(f"{custom}: a folder with code for jobs has no place in this kit; delete it")


def _is_as_written(path: Path, rules: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")) == rules)
    except (OSError, ValueError) as error:
        raise KitError(f"{path}: cannot be read ({error}); delete it, and it is written anew") from None
