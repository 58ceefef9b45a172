"""Registries of container images: names of images, logins, what may be pulled, signatures.

Names and logins are those of the docker command, so this package and the engines of Docker and Swarm are the only
ones that use Docker's library.
"""
