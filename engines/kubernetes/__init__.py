"""The engine for a Kubernetes; the only place that uses lightkube, which the extra ``k8s`` brings."""

from engines.kubernetes.engine import KubernetesEngine as KubernetesEngine
from engines.kubernetes.jobs import KubernetesOptions as KubernetesOptions
