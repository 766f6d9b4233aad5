#!/usr/bin/env bash
# Builds a Debian package of a program that is already built: the program, its manual pages and completions, the unit of
# systemd and its configuration.
#
#   cargo build --release --locked --bin waymark
#   scripts/package/deb.sh target/release/waymark dist
set -euo pipefail
if [ $# -ne 2 ]; then
    echo "usage: $0 PROGRAM FOLDER" >&2
    exit 2
fi
# Without objdump, every program would look static.
command -v objdump >/dev/null || { echo "objdump is missing: install binutils" >&2; exit 1; }
program=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."

version=$("$program" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
# Version of the oldest C library that has every function that the program calls.
glibc=$(objdump -T "$program" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1 | cut -d_ -f2 || true)
libraries=
# A program built by static.sh needs no C library.
if [ -n "$glibc" ]; then
    libraries="libc6 (>= $glibc), libstdc++6, "
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -D -m 755 "$program" "$root/usr/bin/waymark"
strip "$root/usr/bin/waymark" 2>/dev/null || true
install -D -m 644 deploy/waymark.service "$root/usr/lib/systemd/system/waymark.service"
install -D -m 644 deploy/waymark.toml "$root/etc/waymark/waymark.toml"
install -D -m 644 LICENSE "$root/usr/share/doc/waymark/copyright"
mkdir -p "$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions" \
    "$root/usr/share/zsh/vendor-completions" "$root/usr/share/fish/vendor_completions.d"
"$program" man --out "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
"$program" completions bash >"$root/usr/share/bash-completion/completions/waymark"
"$program" completions zsh >"$root/usr/share/zsh/vendor-completions/_waymark"
"$program" completions fish >"$root/usr/share/fish/vendor_completions.d/waymark.fish"

mkdir "$root/DEBIAN"
echo /etc/waymark/waymark.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<CONTROL
Package: waymark
Version: $version
Architecture: $arch
Maintainer: The Waymark authors
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: ${libraries}ca-certificates, procps
Recommends: python3-pip
Section: net
Priority: optional
Description: Inference server for trained agentic RAG policies
 Waymark runs the language model, the think-search-answer loop and the indexes
 in one process behind the OpenAI API.
CONTROL
# The service is neither enabled nor started: it needs an index first.
cat >"$root/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    id waymark >/dev/null 2>&1 || useradd --system --home-dir /var/lib/waymark --shell /usr/sbin/nologin waymark
    # An index can be built into the first one and weights pulled into the second one before the service has ever run.
    install -d -o waymark -g waymark -m 750 /var/lib/waymark /var/cache/waymark
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        # After an upgrade: a service that runs is drained and started with the new program.
        if [ -n "$2" ]; then systemctl try-restart waymark.service || true; fi
    fi
fi
POSTINST
cat >"$root/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now waymark.service || true; fi
PRERM
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"

package="$out/waymark_${version}_$arch.deb"
dpkg-deb --root-owner-group --build "$root" "$package"
ls -l "$package"
