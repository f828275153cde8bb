#!/bin/bash
# The contract of block devices on a loop device, whose content it destroys: the test of crates/host/tests/device.rs that `cargo test` leaves out. As root, in an empty folder.
set -e
truncate -s 256M device.img
WEIR_TEST_BLOCK_DEVICE=$(losetup --find --show device.img)
export WEIR_TEST_BLOCK_DEVICE
trap 'losetup --detach "$WEIR_TEST_BLOCK_DEVICE"' EXIT
cargo test --quiet --manifest-path "$(dirname "$0")/../Cargo.toml" --package openweir-host --test device -- --ignored --nocapture
