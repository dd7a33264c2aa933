//! Configuration: what the user wrote, parsed into checked values.
