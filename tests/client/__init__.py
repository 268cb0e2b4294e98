"""The SDK: members against the real coordinator in virtual time, and the transports against real sockets."""
