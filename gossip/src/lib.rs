//! The replicated view of a Grapevine cluster.
