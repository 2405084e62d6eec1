//! Who gets in: logins, certificates, HBA files, secrets, floods of clients and what is told of them.

#[path = "../audit.rs"]
mod audit;
#[path = "../doors.rs"]
mod doors;
#[path = "../floods.rs"]
mod floods;
#[path = "../hba.rs"]
mod hba;
#[path = "../ldap.rs"]
mod ldap;
#[path = "../logins.rs"]
mod logins;
#[path = "../proxied.rs"]
mod proxied;
#[path = "../secrets.rs"]
mod secrets;
#[path = "../support/mod.rs"]
mod support;
