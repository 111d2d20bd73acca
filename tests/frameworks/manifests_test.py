"""The manifests of deploy/kubernetes against the schemas of Kubernetes, of Kubeflow's Trainer and JobSet, of cert-manager and of the
Prometheus Operator, all from PyPI: skipped where they are not, run by tools/test-frameworks --kubernetes.

PyPI has none of LeaderWorkerSet and Volcano: of these the pods are looked at, and all of it with COORDD_TEST_CRDS, a folder with their
CustomResourceDefinitions (in their repositories below config/crd)."""

import os
import subprocess
import sys
import unittest

try:
    import jsonschema
    import kubernetes_validate
    import yaml
    from cloudcoil.models.cert_manager import v1 as cert_manager
    from cloudcoil.models.prometheus_operator import v1 as operator
    from cloudcoil.models.prometheus_operator import v1alpha1 as operator_alpha
    from kubeflow_trainer_api import models
except ModuleNotFoundError as missing:
    if missing.name.partition(".")[0] not in ("jsonschema", "kubernetes_validate", "yaml", "cloudcoil", "kubeflow_trainer_api"):
        raise  # they are there, and lack something
    print(f"{missing}: tools/test-frameworks --kubernetes installs it", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MANIFESTS = os.path.join(ROOT, "deploy", "kubernetes")
MODELS = {"JobSet": models.JobsetV1alpha2JobSet, "TrainJob": models.TrainerV1alpha1TrainJob,
          "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime}
# Others are pydantic's.
CUSTOM = {"Issuer": cert_manager.Issuer, "Certificate": cert_manager.Certificate, "PodMonitor": operator.PodMonitor,
          "ScrapeConfig": operator_alpha.ScrapeConfig}
# What the definition of a custom resource judges, and where its pods are.
DEFINED = {"leaderworkerset.x-k8s.io/v1": lambda spec: [spec["leaderWorkerTemplate"]["workerTemplate"]],
           "batch.volcano.sh/v1alpha1": lambda spec: [task["template"] for task in spec["tasks"]]}
# kustomize judges its own files, below.
WITHOUT_A_SCHEMA = {"Kustomization"}


def documents():
    for folder, _, names in sorted(os.walk(MANIFESTS)):
        for name in sorted(names):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                for document in yaml.safe_load_all(file):
                    yield name, document


def lost(given, kept, path=""):
    """What a model has not understood: models drop unknown fields."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}.{key}"
            else:
                yield from lost(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list):
        for index, value in enumerate(given):
            yield from lost(value, kept[index] if index < len(kept) else None, f"{path}[{index}]")


def understood(document):
    return CUSTOM[document["kind"]].model_validate(document).model_dump(by_alias=True, exclude_none=True, mode="json")


def definitions():
    """Schemas by group and version."""
    folder, found = os.environ.get("COORDD_TEST_CRDS", ""), {}
    for name in sorted(os.listdir(folder)) if folder else []:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            spec = yaml.safe_load(file)["spec"]
        for version in spec["versions"]:
            found[f"{spec['group']}/{version['name']}"] = closed(version["schema"]["openAPIV3Schema"])
    return found


def closed(schema):
    """The same where no field may be there that it does not name; Kubernetes would drop it."""
    if not isinstance(schema, dict):
        return schema
    schema = {key: {name: closed(value) for name, value in inner.items()} if key == "properties" else closed(inner)
              for key, inner in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("format", None)
    return schema


def check_defined(document, schemas):
    for template in DEFINED[document["apiVersion"]](document["spec"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", **template.get("metadata", {})}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    if document["apiVersion"] in schemas:
        schema = schemas[document["apiVersion"]]
        schema["properties"]["metadata"] = {"type": "object"}
        jsonschema.validate(document, schema)


def pods_of(value):
    """What has containers, anywhere in a document."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pods_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods_of(inner)


class Manifests(unittest.TestCase):
    def test_each_document_fits_its_schema(self):
        kinds, schemas = set(), definitions()
        for name, document in documents():
            kind = document["kind"]
            kinds.add(kind)
            with self.subTest(f"{name}: {kind}"):
                if document.get("apiVersion") in DEFINED:
                    kinds.add(document["apiVersion"])
                    check_defined(document, schemas)
                elif kind in MODELS:
                    model = MODELS[kind].from_dict(document)
                    self.assertEqual(list(lost(document, model.to_dict())), [])
                elif kind in CUSTOM:
                    self.assertEqual(list(lost(document, understood(document))), [])
                elif kind not in WITHOUT_A_SCHEMA:
                    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        self.assertLessEqual({"StatefulSet", "Job", "NetworkPolicy", *MODELS, *CUSTOM, *DEFINED}, kinds)

    def test_a_wrong_field_is_found(self):
        for _, document in documents():
            if document["kind"] == "TrainJob":
                document["spec"]["trainer"]["numNoodles"] = 4
                self.assertEqual(list(lost(document, models.TrainerV1alpha1TrainJob.from_dict(document).to_dict())),
                                 [".spec.trainer.numNoodles"])
            if document["kind"] == "Certificate":
                document["spec"]["durations"] = "1h"
                self.assertEqual(list(lost(document, understood(document))), [".spec.durations"])
            if document["kind"] == "StatefulSet":
                document["spec"]["replica"] = 1
                with self.assertRaises(kubernetes_validate.ValidationError):
                    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)

    def test_pods_fit_the_restricted_profile_and_say_what_they_use(self):
        seen = 0
        for name, document in documents():
            for pod in pods_of(document):
                seen += 1
                with self.subTest(f"{name}: {document['kind']}"):
                    security, container = pod["securityContext"], pod["containers"][0]
                    self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"})
                    self.assertTrue(security["runAsNonRoot"] and security["fsGroup"])
                    self.assertIs(container["securityContext"]["allowPrivilegeEscalation"], False)
                    self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
                    self.assertIs(pod["automountServiceAccountToken"], False)
                    self.assertLessEqual({"cpu", "memory"}, set(container["resources"]["requests"]))
                    self.assertIn("memory", container["resources"]["limits"])
        self.assertEqual(seen, 6)

    def test_no_secret_has_a_value_that_everybody_knows(self):
        self.assertEqual([name for name, document in documents() if document["kind"] == "Secret"], [])

    def rendered(self, folder):
        try:
            done = subprocess.run(["kubectl", "kustomize", os.path.join(MANIFESTS, folder)], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            self.skipTest("there is no kubectl")
        self.assertEqual(done.returncode, 0, done.stderr)
        return list(yaml.safe_load_all(done.stdout))

    def test_kustomize_renders_all_folders(self):
        for folder in ("base", "jobs", "standby"):
            self.assertTrue(all(one["metadata"]["namespace"] == "training" for one in self.rendered(folder)))

    def test_a_machine_with_coordd_on_it_can_be_drained(self):
        """By the rule of Kubernetes: as many pods may be evicted as are more than the budget wants of those there should be."""
        for folder in ("base", "standby"):
            documents = {one["kind"]: one["spec"] for one in self.rendered(folder) if "spec" in one}
            budget = documents.get("PodDisruptionBudget")
            if budget is None:
                continue
            replicas = documents["StatefulSet"]["replicas"]
            self.assertNotIn("minAvailable", budget)
            ready = 1  # of two, one stands by
            self.assertGreater(ready - (replicas - budget["maxUnavailable"]), 0, folder)
            self.assertEqual(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow")

    def test_the_end_of_coordds_pod_does_not_end_jobs(self):
        for folder in ("base", "standby"):
            pod = next(one for one in self.rendered(folder) if one["kind"] == "StatefulSet")["spec"]["template"]["spec"]
            self.assertEqual(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1], "kill -USR1 1")

    def test_of_two_coordds_one_stands_by_on_another_machine(self):
        rendered = self.rendered("standby")
        documents = {one["kind"]: one for one in rendered}
        server = next(one for one in rendered if one["metadata"]["name"] == "coordd-server")
        self.assertLessEqual({"coordd-0.coordd", "coordd-1.coordd"}, set(server["spec"]["dnsNames"]))
        for kind in ("StatefulSet", "Service", "NetworkPolicy"):
            kubernetes_validate.validate(documents[kind], kubernetes_validate.latest_version(), strict=True)
        self.assertNotIn("PodDisruptionBudget", documents)
        two = documents["StatefulSet"]["spec"]
        self.assertEqual((two["replicas"], two["updateStrategy"]["type"]), (2, "OnDelete"))
        self.assertNotIn("volumeClaimTemplates", two)
        arguments = two["template"]["spec"]["containers"][0]["args"]
        self.assertEqual([one for one in arguments if one.startswith(("--store", "--standby"))],
                         ["--store=etcd:etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379/coordd", "--standby"])
        self.assertIn("state", [volume["name"] for volume in two["template"]["spec"]["volumes"]])


if __name__ == "__main__":
    unittest.main()
