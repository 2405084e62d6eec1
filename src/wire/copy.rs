//! COPY's text and binary rows: encoders and their inverse.
