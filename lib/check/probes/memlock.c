/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks how much memory a rank may lock: RDMA locks the buffers that it registers (ibv_reg_mr). */
#include <stdio.h>
#include <sys/resource.h>

#include "base/json.h"
#include "check/check_internal.h"

#define ENOUGH_BYTES (1LL << 30)

static json_t *collect(const struct prober *prober)
{
	struct rlimit limit;

	(void)prober;
	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		return NULL;
	_Static_assert((json_int_t)RLIM_INFINITY == -1, "unlimited is sent as -1");
	return json_pack("{s:I, s:I}", "soft", (json_int_t)limit.rlim_cur, "hard",
			 (json_int_t)limit.rlim_max);
}

static void size_text(int64_t bytes, char *text, size_t size)
{
	if (bytes < 0)
		snprintf(text, size, "unlimited");
	else
		snprintf(text, size, "%lld KiB", (long long)(bytes >> 10));
}

/* The first NIC in use whose memory verbs registers; that counts against the limit. */
static const char *locker(const struct inventory *inventory)
{
	for (size_t n = 0; n < inventory->nic_count; n++)
		if ((inventory->nics[n].kind == NIC_INFINIBAND ||
		     inventory->nics[n].kind == NIC_ROCE || inventory->nics[n].kind == NIC_EFA) &&
		    !inventory->nics[n].management && inventory->nics[n].state != NIC_STATE_DOWN)
			return *inventory->nics[n].rdma ? inventory->nics[n].rdma
							: inventory->nics[n].net;
	return NULL;
}

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	const char *nic = locker(&check->inventories[i]);
	int64_t soft, hard;
	char text[48], most[48];

	if (!answer || json_get_int("memlock", answer, "soft", -1, INT64_MAX, &soft, NULL) ||
	    json_get_int("memlock", answer, "hard", -1, INT64_MAX, &hard, NULL))
		return;
	size_text(soft, text, sizeof text);
	size_text(hard, most, sizeof most);
	if (soft < 0 || soft >= ENOUGH_BYTES || !nic)
		check_add(check, i, "memlock", CHECK_OK, NULL, "%s%s", text,
			  soft >= 0 && soft < ENOUGH_BYTES
				  ? "; only verbs (InfiniBand, RoCE, EFA) need more"
				  : "");
	else if (hard < 0 || hard >= ENOUGH_BYTES)
		check_add(check, i, "memlock", CHECK_FAULT,
			  "run ulimit -l unlimited in the job script, before berth",
			  "ranks may lock %s of memory (hard limit: %s): %s cannot register "
			  "its buffers, and ibv_reg_mr fails with 'Cannot allocate memory'",
			  text, most, nic);
	else
		check_add(check, i, "memlock", CHECK_FAULT,
			  "ask an administrator to set LimitMEMLOCK=infinity for slurmd or "
			  "pbs_mom, from which the job inherits it; with Slurm also "
			  "PropagateResourceLimitsExcept=MEMLOCK",
			  "ranks may lock at most %s of memory: %s cannot register its "
			  "buffers, and ibv_reg_mr fails with 'Cannot allocate memory'",
			  most, nic);
}

const struct check_probe probe_memlock = {"memlock", .collect = collect, .judge_node = judge_node};
