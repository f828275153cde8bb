#!/usr/bin/env bash
# Pictures of the pages of all studies of the laboratory, in light, dark and narrow, by headless
# Chromium: to be looked at after a change of the pages.
#
#     docs/lab-pages.sh target/release/weir [FOLDER]
#
# FOLDER (docs/lab) gets STUDY-light.png, STUDY-dark.png and STUDY-narrow.png. The studies are small
# ones, of one seed: a few minutes on two cores. Needs chromium and python3 with Pillow, which makes
# the pictures small.
set -euo pipefail
weir=$(realpath "$1")
out=$(realpath -m "${2:-$(dirname "$0")/lab}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

cat > "$work/evening.toml" <<'TOML'
[pool]
layout = "mirror 2"
device = "nvme"
memory = "1G"
recordsize = "8k"

[run]
seconds = 10

[[job]]
name = "db"
threads = 4
block = "8k"
pattern = "random"
read = 70
size = "64M"
sync = "each"
rate = "poisson 200"

[[job]]
name = "copy"
block = "128k"
size = "256M"
TOML

page() { # NAME ARGS...
    local name=$1
    shift
    "$weir" lab "$@" --seeds 1 --state "$work/$name.state" --html "$work/$name.html" > "$work/$name.txt"
    local scheme width
    for look in light dark narrow; do
        scheme=1 width=1000
        if [ "$look" = dark ]; then scheme=0; fi
        if [ "$look" = narrow ]; then width=400; fi
        chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
            --disable-background-networking --disable-component-update --disable-sync \
            --user-data-dir="$work/profile" --blink-settings=preferredColorScheme=$scheme \
            --window-size=$width,7000 --screenshot="$work/$name-$look.png" "file://$work/$name.html" 2> "$work/chromium.log"
        python3 - "$work/$name-$look.png" "$out/$name-$look.png" <<'PY'
import sys
from PIL import Image, ImageChops
image = Image.open(sys.argv[1]).convert("RGB")
# Without the empty end of the page.
empty = Image.new("RGB", image.size, image.getpixel((image.width - 1, image.height - 1)))
box = ImageChops.difference(image, empty).getbbox() or (0, 0, 1, 1)
image = image.crop((0, 0, image.width, min(box[3] + 20, image.height)))
image.quantize(24, dither=Image.Dither.NONE).save(sys.argv[2], optimize=True)
PY
    done
    echo "$name"
}

page throttle throttle --seconds 20
page zil zil --media ssd --disks 1 --threads 2,8,16
page arc arc
page coldstart coldstart --readers 63 --input 64M
page starvation starvation --seconds 5
page fragmentation fragmentation
page run run "$work/evening.toml"
