#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# MPICH's mpiexec next to Open MPI's: if it is not installed, Debian's packages are unpacked below DIR.
#   mpich.sh DIR COMMAND...   runs COMMAND with the path of mpiexec.hydra in HYDRA and of its libraries
#                             in HYDRA_LIBRARIES; both are unset if MPICH is unavailable
set -u
dir=$1/mpich
shift
HYDRA=$(command -v mpiexec.hydra) HYDRA_LIBRARIES=
if [ -z "$HYDRA" ] && command -v apt-get >/dev/null; then
	HYDRA=$dir/usr/bin/mpiexec.hydra
	HYDRA_LIBRARIES=$(echo "$dir"/usr/lib/*/)
	if [ ! -x "$HYDRA" ]; then
		rm -rf "$dir" && mkdir -p "$dir" || exit 1
		(cd "$dir" && timeout 60 apt-get download mpich libslurm38 && for deb in *.deb; do dpkg -x "$deb" . || exit; done) >/dev/null 2>&1
		HYDRA_LIBRARIES=$(echo "$dir"/usr/lib/*/)
	fi
	LD_LIBRARY_PATH=$HYDRA_LIBRARIES:${LD_LIBRARY_PATH-} "$HYDRA" --version >/dev/null 2>&1 || HYDRA=
fi
export HYDRA HYDRA_LIBRARIES
exec "$@"
