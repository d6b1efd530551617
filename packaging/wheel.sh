#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Build the wheel berth-hpc: berth, libberth and the Python package, for machines with glibc 2.28 (RHEL 8) or
# newer, which need nothing else installed:
#   packaging/wheel.sh [DIRECTORY]        where the .whl goes (build-wheel)
# Clang of the package ziglang compiles for the old glibc. hwloc, jansson, libsodium, libxml2 and zlib are built
# from Debian's sources and are inside. The PMIx module is compiled with this machine's headers (4.2 or newer), and uses
# the libpmix.so.2 of the machine it runs on, if there is one. The trainer is not part of it.
# Needs: Debian's apt-get (any user), autoreconf, libtool, make, pkg-config, scdoc, PMIx's headers, Python's venv, and
# PyPI. ARCH=aarch64 compiles for that (without man pages); the default is x86_64.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$source/build-wheel}"
out=$(cd "${1:-$source/build-wheel}" && pwd)
cd "$source"
arch=${ARCH-x86_64}
glibc=2.28
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n "s/^  version: '\([0-9.]*\)',/\1/p" meson.build)

say() { echo "berth: note: $*" >&2; }
quietly() { # COMMAND...: show its output only if it fails
	"$@" >"$work/log" 2>&1 || {
		tail -n 40 "$work/log" >&2
		return 1
	}
}

say "compiler and tools from PyPI"
python3 -m venv "$work/venv"
python=$work/venv/bin/python
quietly "$work/venv/bin/pip" install ziglang==0.17.1 meson==1.7.2 ninja==1.11.1.4 wheel==0.45.1
for tool in cc ar ranlib; do
	options=
	[ "$tool" != cc ] || options="-target $arch-linux-gnu.$glibc"
	printf '#!/bin/sh\nexec %s -m ziglang %s %s "$@"\n' "$python" "$tool" "$options" >"$work/$tool"
	chmod +x "$work/$tool"
done
export ZIG_GLOBAL_CACHE_DIR="$work/zig" ZIG_LOCAL_CACHE_DIR="$work/zig"

say "sources of hwloc, jansson, libsodium, libxml2 and zlib"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/src"
echo "deb-src http://deb.debian.org/debian bookworm main" >"$work/sources.list"
apt() {
	(cd "$work/src" && quietly apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- \
		-o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User= "$@")
}
apt update
apt source hwloc jansson libsodium libxml2 zlib

export CC="$work/cc" AR="$work/ar" RANLIB="$work/ranlib" CFLAGS='-O2 -fPIC'
deps=$work/deps
pmix_version=$(pkg-config --modversion pmix) pmix_flags=$(pkg-config --cflags pmix)
export PKG_CONFIG_LIBDIR="$deps/lib/pkgconfig"
library() { # NAME [OPTIONS OF configure]
	say "building $1"
	cd "$work/src/$1"-*/
	shift
	[ -e configure ] || quietly autoreconf -fi
	case $PWD in
	*/zlib-*) quietly ./configure --static --prefix="$deps" ;;
	*) quietly ./configure --host="$arch-linux-gnu" --prefix="$deps" --disable-shared --enable-static --with-pic "$@" ;;
	esac
	# Debian's patches are newer than what autoconf made.
	quietly make ACLOCAL=: AUTOCONF=: AUTOHEADER=: AUTOMAKE=: install
	cd "$source"
}
library zlib
library jansson
library libsodium
# hwloc's own parser reads only files as hwloc writes them.
library libxml2 --without-python --without-zlib --without-lzma --without-iconv --without-icu --without-http --without-ftp \
	--without-readline --without-debug --without-threads
library hwloc --disable-pci --disable-opencl --disable-cuda --disable-nvml --disable-rsmi \
	--disable-levelzero --disable-gl --disable-libudev --disable-cairo --disable-plugins

# Only names to link with: the functions are those of the user's libpmix.so.2, in Debian in a directory of its own.
grep -oh '\<PMIx_[A-Za-z_]*(' lib/pmix/*.c | sort -u | sed 's/(/(void) {}/; s/^/void /' >"$work/names.c"
"$CC" -shared -Wl,-soname,libpmix.so.2 -o "$deps/lib/libpmix.so" "$work/names.c"
cat >"$deps/lib/pkgconfig/pmix.pc" <<PC
Name: pmix
Description: headers of this machine
Version: $pmix_version
Cflags: $pmix_flags
Libs: -L$deps/lib -Wl,-rpath,/usr/lib/$arch-linux-gnu/pmix2/lib -lpmix
PC

say "building berth"
printf '[binaries]\nc = %s\nar = %s\npkg-config = %s\n[host_machine]\nsystem = %s\ncpu_family = %s\ncpu = %s\nendian = %s\n' \
	"'$CC'" "'$AR'" "'$(command -v pkg-config)'" "'linux'" "'$arch'" "'$arch'" "'little'" >"$work/cross.ini"
packaging/files.sh | (mkdir "$work/berth" && tar -c --null -T - | tar -x -C "$work/berth")
cd "$work/berth"
unset CC AR RANLIB CFLAGS
export PATH="$work/venv/bin:$PATH"
quietly meson setup build --cross-file "$work/cross.ini" --buildtype=release --prefix=/usr --libdir=lib \
	-Dprefer_static=true -Dc_link_args=-s \
	-Dpkgconfig.relocatable=true -Dtests=disabled -Dpmix=enabled -Dmpi=disabled -Dgloo=disabled -Dnccl=disabled \
	-Djpeg=disabled -Ddnnl=disabled -Dcuda=disabled
quietly meson compile -C build
quietly meson install -C build --destdir "$work/tree"

# pip installs NAME.data/data into the environment's prefix, and makes NAME.data/scripts executable.
say "packing"
wheel=$work/wheel
data=$wheel/berth_hpc-$version.data
mkdir -p "$data" "$wheel/berth_hpc-$version.dist-info"
mv "$work/tree/usr" "$data/data"
rm -rf "$data/data/bin/berth-train" "$data/data/share/man/man1/berth-train.1" "$data/data/share/modulefiles"
mkdir "$data/scripts"
mv "$data/data/bin/berth" "$data/scripts"
rmdir "$data/data/bin"
mv "$data/data/share/berth/python/berth" "$wheel"
rmdir "$data/data/share/berth/python"
find "$data" -type l | while read -r link; do # a wheel has no links
	file=$(readlink -f "$link") && rm "$link" && cp "$file" "$link"
done
rm "$data/data/lib/libberth.so.$version"
cp LICENSE "$wheel/berth_hpc-$version.dist-info"
cat >"$wheel/berth_hpc-$version.dist-info/METADATA" <<METADATA
Metadata-Version: 2.1
Name: berth-hpc
Version: $version
Summary: Start every process of a training job on a cluster in the right place
License: BSD-3-Clause
Requires-Python: >=3.9
Description-Content-Type: text/markdown

METADATA
cat README.md >>"$wheel/berth_hpc-$version.dist-info/METADATA"
cat >"$wheel/berth_hpc-$version.dist-info/WHEEL" <<WHEEL
Wheel-Version: 1.0
Generator: berth packaging/wheel.sh
Root-Is-Purelib: false
Tag: py3-none-manylinux_${glibc%.*}_${glibc#*.}_$arch
WHEEL
# auditwheel would count what this machine's libpmix.so.2 needs, too.
newest=$(find "$data" \( -name '*.so*' -o -path '*/scripts/berth' \) -exec readelf -V {} + | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[ "$(printf '%s\n' "$newest" "GLIBC_$glibc" | sort -V | tail -n 1)" = "GLIBC_$glibc" ] || {
	echo "berth: error: a file needs $newest, not $glibc or older" >&2
	exit 1
}
quietly "$python" -m wheel pack --dest-dir "$out" "$wheel"
ls "$out"/*.whl
