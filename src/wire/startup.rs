//! Startup packets: StartupMessage, SSLRequest, GSSENCRequest, CancelRequest.
