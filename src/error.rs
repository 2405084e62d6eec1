//! What may go wrong and what a client is told of it.
