/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/nccl/library.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/module.h"

#define FILE_NAME "libnccl.so.2"

static struct nccl_library table;

static const char *load_symbols(void *file)
{
	const struct symbol symbols[] = {
		{"ncclGetVersion", &table.version, true},
		{"ncclGetErrorString", &table.error_string, true},
		{"ncclGetLastError", &table.last_error, true},
		{"ncclGetUniqueId", &table.unique_id, true},
		{"ncclCommInitRankConfig", &table.init, true},
		{"ncclCommGetAsyncError", &table.async_error, true},
		{"ncclCommFinalize", &table.finalize, true},
		{"ncclCommDestroy", &table.destroy, true},
		{"ncclCommAbort", &table.abort, true},
		{"ncclAllReduce", &table.all_reduce, true},
		{"ncclBroadcast", &table.broadcast, true},
		{"ncclAllGather", &table.all_gather, true},
	};

	return symbols_find(file, symbols, sizeof symbols / sizeof *symbols);
}

void nccl_version_text(int version, char text[16])
{
	int big = version >= 10000 ? 10000 : 1000;

	snprintf(text, 16, "%d.%d.%d", version / big, version % big / 100, version % 100);
}

int nccl_library_load(const struct nccl_library **out, int *version, struct error *err)
{
	void *file = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
	const char *missing;
	char text[16] = "", oldest[16];

	if (!file) {
		const char *why = dlerror();

		return error_set(
			err, ERR_UNAVAILABLE,
			"cannot load NCCL: %s. Install libnccl2, add the directory of " FILE_NAME
			" to LD_LIBRARY_PATH, or use --comm mpi",
			why ? why : FILE_NAME);
	}
	missing = load_symbols(file);
	*version = 0;
	if (table.version && table.version(version) != ncclSuccess)
		*version = 0;
	nccl_version_text(*version, text);
	nccl_version_text(NCCL_MIN_VERSION, oldest);
	if (missing || *version < NCCL_MIN_VERSION) {
		dlclose(file);
		return error_set(err, ERR_UNAVAILABLE,
				 FILE_NAME " is NCCL %s%s%s, but berth requires %s or newer. "
					   "Install a newer version, or use --comm mpi",
				 *version ? text : "of an unknown version",
				 missing ? " without " : "", missing ? missing : "", oldest);
	}
	*out = &table;
	return 0;
}

int nccl_error(const struct nccl_library *library, ncclComm_t handle, ncclResult_t result,
	       const char *what, struct error *err)
{
	const char *last = library->last_error(handle);
	bool more = last && *last;

	return error_set(err, ERR_NETWORK, "%s: NCCL error: %s%s%.300s%s", what,
			 library->error_string(result), more ? " (" : "", more ? last : "",
			 more ? ")" : ". Set NCCL_DEBUG=INFO for details");
}

int cuda_error(cudaError_t result, const char *what, struct error *err)
{
	return error_set(err, ERR_UNAVAILABLE, "%s: CUDA error: %s", what,
			 cudaGetErrorString(result));
}
