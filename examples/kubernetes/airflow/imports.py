"""Airflow tasks that run on a slot, by one class derived from the KubernetesPodOperator.

An Airflow pool counts only the tasks of that Airflow. Slots also count other clients: other Airflows, CronJobs, a shell.
"""

from datetime import datetime, timedelta
from pathlib import Path

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG


class OnSlot(KubernetesPodOperator):
    """Runs `command` while it holds one of `limit` slots of the semaphore at `prefix`.

    A waiting pod is running, so that `startup_timeout_seconds` does not end it. After two hours it times out, and the task is skipped.
    If the slot is lost, the command is stopped before another client has the slot, and the task is retried.
    """

    def __init__(self, *, prefix: str, limit: int, command: list[str], **operator):
        slot = ["--limit", str(limit), "--timeout", "2h", "--verbose", prefix]
        super().__init__(
            pod_template_file=str(Path(__file__).with_name("slotkeeper-pod.yaml")),
            cmds=["/opt/slotkeeper/slotkeeper", "run", *slot, "--"],
            arguments=command,
            skip_on_exit_code=75,
            **operator,
        )


with DAG("imports", schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False):
    for table in ("orders", "customers", "stock"):
        OnSlot(
            task_id=f"import-{table}",
            name=f"import-{table}",
            namespace="batch",
            image="import:7",
            prefix="service/warehouse/writers",
            limit=5,
            command=["/bin/import", table],
            retries=3,
            retry_delay=timedelta(seconds=10),
        )
