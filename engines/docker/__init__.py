"""The engine for a Docker daemon; the only place that uses Docker's client."""

from engines.docker.daemon import Source as Source
from engines.docker.engine import ContainerdEngine as ContainerdEngine
from engines.docker.engine import DockerOptions as DockerOptions
from engines.docker.images import PullRules as PullRules
