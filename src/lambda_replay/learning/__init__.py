"""Networks and their training, in torch; what is only there for speed lives in files that say so."""
