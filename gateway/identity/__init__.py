"""The node's identity: key pairs, signatures of requests, invitations, the audit log's chain."""
