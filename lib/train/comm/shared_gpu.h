/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank has which GPU. NCCL hangs or gives up without a reason where two ranks of one host
 * use the same: that is found here, before it is called. */
#ifndef BERTH_TRAIN_COMM_SHARED_GPU_H
#define BERTH_TRAIN_COMM_SHARED_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* One rank's, as it travels between the ranks of one build. */
struct rank_gpu {
	char host[64];
	char uuid[48];	 /* "GPU-..." or "MIG-..." as nvidia-smi -L prints it */
	int32_t version; /* the library's: NCCL_VERSION_CODE */
};

/* "GPU-8a1b2c3d-...": 16 bytes as NVML and nvidia-smi write them. text: 48 bytes. */
void gpu_uuid_text(const unsigned char uuid[16], char *text);
/* "2.28.9" from NCCL_VERSION_CODE, old and new form. text: 16 bytes. */
void gpu_version_text(int32_t version, char *text);

/* rank_gpus[count], by rank. Pure. UUIDs are unique in the world, so hosts are not compared (a
 * container may give each rank another host name).
 * *shared: whether some GPU has more than one rank. -ERR_UNAVAILABLE where that is so and not
 * allowed (err: rank, host, UUID of each such rank, and the fix), or where the ranks' libraries
 * differ in their major or minor version. */
int gpus_check(const struct rank_gpu *rank_gpus, int count, bool allow_shared, bool *shared,
	       struct error *err);

#endif
