"""The engine for a Docker daemon; the only place that knows Docker's client."""

from engines.containerd.engine import ContainerdEngine as ContainerdEngine
from engines.containerd.pulling import PullRules as PullRules
