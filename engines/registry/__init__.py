"""Registries of container images: names of images, logins, what may be pulled, signatures.

Names and logins have the docker command's form, so this package uses Docker's library, which
otherwise only the engines for Docker and Swarm use.
"""
