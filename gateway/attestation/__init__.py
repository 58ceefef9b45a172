"""Verifiers of attestation reports, and the encryption of inputs for attested runs."""
