//! Plimsoll
