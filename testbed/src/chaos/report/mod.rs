//! How records are shown: on the terminal, as JSON, and as HTML files that need nothing else.
