//! Labels of a leaf device.
