"""The engine for Kubernetes, the only user of lightkube, which the extra ``k8s`` installs."""

from engines.kubernetes.engine import KubernetesEngine as KubernetesEngine
from engines.kubernetes.jobs import KubernetesOptions as KubernetesOptions
