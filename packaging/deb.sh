#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Build the Debian packages for the release that this machine runs (Debian 12, 13, Ubuntu 24.04):
#   packaging/deb.sh [DIRECTORY]     where the .deb files go (build-deb); berth-cuda is built if nvcc is there
# Works in a copy of the source: a clone's tracked files, or an unpacked tarball. Needs no root. If packages for the
# build are missing, it lists them and stops. Exit code: 0, or that of the first command that failed.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$source/build-deb}"
out=$(cd "${1:-$source/build-deb}" && pwd)
cd "$source"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$(sed -n "s/^  version: '\([0-9.]*\)',/\1/p" meson.build)
tree=$work/berth-$version
mkdir "$tree"
packaging/files.sh | tar -c --null -T - | tar -x -C "$tree"
cp -r packaging/debian "$tree/debian"

# The version names the release, so that an upgrade of the system also takes the newer package.
. /etc/os-release
release=$(echo "$ID" | sed 's/^debian$/deb/')${VERSION_ID-$VERSION_CODENAME} # deb12, ubuntu24.04, debsid
date=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}")
cat >"$tree/debian/changelog" <<CHANGELOG
berth ($version~$release) $VERSION_CODENAME; urgency=medium

  * Built from the source of $version; CHANGELOG.md lists the changes.

 -- The berth authors <maintainers@example.org>  $date
CHANGELOG
[ -n "${DEB_BUILD_PROFILES-}" ] || ! PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null ||
	export DEB_BUILD_PROFILES=pkg.berth.cuda
(cd "$tree" && dpkg-buildpackage --build=binary --no-sign) >&2
mv "$work"/*deb "$work"/*.changes "$work"/*.buildinfo "$out"
ls "$out"/*_"$version"~"$release"_*.deb
