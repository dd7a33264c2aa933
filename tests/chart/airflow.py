"""Runs a file of DAGs with Airflow played, and writes the pod of each task, as the KubernetesPodOperator makes it, as a JSON list.

What is played is what the operator's documentation says: the parameters by their names, and how the pod comes of them and of
`pod_template_file`. A parameter that is not among these is an error.
"""

import importlib.util
import json
import sys
import types

import yaml

# Of the operator, as far as the example has them, and of each task.
OPERATOR = {"name", "namespace", "image", "cmds", "arguments", "pod_template_file", "skip_on_exit_code"}
TASK = {"task_id", "retries", "retry_delay"}
# Of them, in which Airflow looks for Jinja's braces.
TEMPLATED = ("image", "name", "namespace", "cmds", "arguments", "pod_template_file")

# Nothing is left beside the example.
sys.dont_write_bytecode = True
pods = []


class Operator:
    def __init__(self, **parameters):
        unknown = parameters.keys() - OPERATOR - TASK
        assert not unknown, f"the operator has no {unknown}"
        assert "{{" not in str([parameters[name] for name in TEMPLATED]), parameters
        with open(parameters["pod_template_file"], encoding="utf-8") as file:
            pod = yaml.safe_load(file)
        pod["metadata"].update(name=parameters["name"], namespace=parameters["namespace"])
        # The operator's own container is laid over the template's first one.
        own = {"name": "base", "image": parameters["image"], "command": parameters["cmds"], "args": parameters["arguments"]}
        pod["spec"]["containers"][0].update(own)
        pod["spec"]["restartPolicy"] = "Never"
        pods.append(pod)


class Dag:
    def __init__(self, name, **_):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made


path = "airflow"
module(path)
for part in ("providers", "cncf", "kubernetes", "operators"):
    path = f"{path}.{part}"
    module(path)
module(f"{path}.pod", KubernetesPodOperator=Operator)
module("airflow.sdk", DAG=Dag)

spec = importlib.util.spec_from_file_location("dags", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(json.dumps(pods))
