//! Vdev trees in configurations.
