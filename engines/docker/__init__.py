"""The engine for a Docker daemon.

Docker's library is used here, in `engines.swarm` and in `engines.registry`.
"""

from engines.docker.daemon import Source as Source
from engines.docker.engine import ContainerdEngine as ContainerdEngine
from engines.docker.engine import DockerOptions as DockerOptions
