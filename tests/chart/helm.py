"""Lints, renders and validates charts, with the Helm engine and without a cluster.

Reads a JSON list of jobs from standard input, and writes a JSON list of answers as the last line of standard output:

    {"do": "lint", "chart": folder}                                   → {"messages": [{"Severity": …}, …]}
    {"do": "render", "chart": folder, "release": name, "values": {…}, "kubernetes": "1.36"}
                                                                      → {"manifests": […], "hooks": […], "notes": text}, or {"refused": text}
    {"do": "validate", "manifests": […], "versions": ["1.31", …]}     → {"faults": [text, …]}

Rendered is what `helm install` sends to an API server, which is a stub on loopback here; hooks are what it would send at other times. The engine reads its settings
from the environment that the process was started with: HELM_DRIVER has to be `memory`.
"""

import asyncio
import functools
import http.server
import json
import sys
import threading


import helm_sdkpy
import kubernetes_validate
import yaml

# Kind, plural, and group with version, of all that the chart makes.
KINDS = [
    ("ConfigMap", "configmaps", "v1"),
    ("ServiceAccount", "serviceaccounts", "v1"),
    ("Pod", "pods", "v1"),
    ("Job", "jobs", "batch/v1"),
    ("CronJob", "cronjobs", "batch/v1"),
    ("NetworkPolicy", "networkpolicies", "networking.k8s.io/v1"),
    ("PodMonitor", "podmonitors", "monitoring.coreos.com/v1"),
    ("PrometheusRule", "prometheusrules", "monitoring.coreos.com/v1"),
]


class ApiServer(http.server.BaseHTTPRequestHandler):
    """Knows the kinds, has nothing, takes whatever it is given and keeps it."""

    protocol_version = "HTTP/1.1"
    taken: list = []
    version = ""

    def do_GET(self):
        path = self.path.split("?")[0].rstrip("/")
        groups = sorted({version for _, _, version in KINDS if "/" in version})
        if path == "/version":
            major, minor = self.version.split(".")
            return self.answer(200, {"major": major, "minor": minor, "gitVersion": f"v{self.version}.0"})
        if path == "/api":
            return self.answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        if path == "/apis":
            versions = [{"groupVersion": group, "version": "v1"} for group in groups]
            named = [
                {"name": one["groupVersion"].split("/")[0], "versions": [one], "preferredVersion": one}
                for one in versions
            ]
            return self.answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": named})
        asked = path.removeprefix("/apis/").removeprefix("/api/")
        resources = [
            {"name": plural, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["create", "get", "patch"]}
            for kind, plural, version in KINDS
            if version == asked
        ]
        if resources:
            return self.answer(
                200,
                {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": asked, "resources": resources},
            )
        return self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.taken.append(body)
        self.answer(201, body)

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def kubeconfig(port):
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "clusters": [{"name": "stub", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
            "users": [{"name": "stub", "user": {"token": "none"}}],
        }
    )


def lint(job):
    result = asyncio.run(helm_sdkpy.Lint(helm_sdkpy.Configuration(kubeconfig=kubeconfig(1))).run(job["chart"]))
    return {"messages": result["Messages"] + [{"Severity": 3, "Err": error} for error in result["Errors"] or []]}


def render(job):
    ApiServer.taken = []
    ApiServer.version = job["kubernetes"]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    configuration = helm_sdkpy.Configuration(namespace="batch", kubeconfig=kubeconfig(server.server_port))
    install = helm_sdkpy.Install(configuration)
    try:
        release = asyncio.run(install.run(job["release"], job["chart"], values=job["values"], wait=False))
    except helm_sdkpy.HelmError as error:
        return {"refused": str(error)}
    finally:
        server.shutdown()
        server.server_close()
    hooks = [yaml.safe_load(hook["manifest"]) for hook in release.get("hooks", [])]
    return {"manifests": ApiServer.taken, "hooks": hooks, "notes": release["info"].get("notes", "")}


# It reads the same files, of some megabytes, for every manifest.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def validate(job):
    faults = []
    for manifest in job["manifests"]:
        # The operator's own kinds are in no schema of Kubernetes.
        if manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in job["versions"]:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(str(part) for part in error.path)
                faults.append(f"{version} {manifest['kind']} {where}: {error.message}")
    return {"faults": faults}


DO = {"lint": lint, "render": render, "validate": validate}
print(json.dumps([DO[job["do"]](job) for job in json.load(sys.stdin)]))
