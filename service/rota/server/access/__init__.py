"""Authentication of callers: files and tables, issuers' keys, certificates, all reloaded when they change."""
