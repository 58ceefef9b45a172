"""The engine for a Docker daemon; the only place that knows Docker's client."""

from engines.docker.engine import ContainerdEngine as ContainerdEngine
from engines.docker.images import PullRules as PullRules
