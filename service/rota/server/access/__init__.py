"""How a server finds out who calls: its files and tables, issuers' keys, certificates, all reread when they change."""
