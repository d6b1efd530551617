# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh disable=SC2046,SC2086 # directories between colons
# Runs in a container for berth check: prints NAME=VALUE for what the image has. Needs only a shell.
exec 2>/dev/null
print() { [ -z "$2" ] || echo "$1=$2"; }
libraries=$(ldconfig -p || /sbin/ldconfig -p; IFS=:; [ -z "$LD_LIBRARY_PATH" ] || ls $LD_LIBRARY_PATH)
has() { case $libraries in *"$1"*) echo "$1=yes" ;; esac; }
libc=$(getconf GNU_LIBC_VERSION)
print glibc "${libc#glibc }"
print CUDA "$CUDA_VERSION"
for at in /usr/local/cuda*/compat/libcuda.so.1; do [ ! -e "$at" ] || echo compat=yes; done
has libibverbs.so.1
has libnccl-net
has libpmix.so.2
print MPI "$(mpirun --version | while read -r line; do echo "$line"; break; done)"
# Open MPI may have its own copy; that of release 4 is in a plug-in.
mpi=$(readlink -f "$(command -v mpirun)")
for at in "${mpi%/bin/*}"/lib*/libpmix.so.2 "${mpi%/bin/*}"/lib*/openmpi*/mca_pmix_* "${mpi%/bin/*}"/lib/*/openmpi/lib/openmpi*/mca_pmix_*; do
	[ ! -e "$at" ] || echo libpmix.so.2=yes
done
# Libraries of the host that are shown: made for a newer glibc, or without what they need?
IFS=:
for at in $BERTH_SHOWN; do
	unset IFS
	for file in "$at" "$at"/*.so*; do
		case $file in *.so*) [ -f "$file" ] || continue ;; *) continue ;; esac
		lacks=$(ldd "$file" 2>&1 | {
			while read -r line; do
				case $line in
				*'version `'*"' not found"*) line=${line#*version \`} line=${line%%\'*} ;;
				*' => not found'*) line=${line%% *} ;;
				*) continue ;;
				esac
				case $seen' ' in *" $line "*) ;; *) seen="$seen $line" ;; esac
			done
			echo "$seen"
		})
		[ -z "$lacks" ] || echo "lacks=$file needs$lacks"
	done
done
for python in python3 python; do
	$python - <<-'P' && break
	import sys
	sys.path[:] = filter(None, sys.path)  # without the working directory, where other users may have put csv.py
	import importlib.metadata as metadata
	for name, package in ('PyTorch', 'torch'), ('JAX', 'jax'), ('CUDA', 'nvidia-cuda-runtime'), ('NCCL', 'nvidia-nccl'):
	    for suffix in '', '-cu13', '-cu12', '-cu11':
	        try:
	            print(name + '=' + metadata.version(package + suffix))
	        except metadata.PackageNotFoundError:
	            pass
	P
done
echo end=
