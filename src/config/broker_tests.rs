//! Whole `[broker]` sections of a RabbitMQ against whole error texts.
