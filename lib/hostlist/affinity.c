/* SPDX-License-Identifier: BSD-3-Clause */
/* hwloc could do the same, but only with a loaded topology, which takes longer than starting a
 * process. */
#include "hostlist/affinity.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPUS (IDSET_MAX + 1) /* more than any kernel has: it copies what it has */

struct idset *affinity_get(pid_t tid)
{
	size_t size = CPU_ALLOC_SIZE(CPUS);
	cpu_set_t *set = CPU_ALLOC(CPUS);
	struct idset *out = idset_new();
	int rc = set && out ? sched_getaffinity(tid, size, set) : -1;

	if (!set || !out)
		errno = ENOMEM;
	for (int cpu = 0, left = rc ? 0 : CPU_COUNT_S(size, set); !rc && left > 0; cpu++)
		if (CPU_ISSET_S((size_t)cpu, size, set)) {
			rc = idset_add(out, cpu);
			left--;
		}
	CPU_FREE(set);
	if (!rc)
		return out;
	idset_free(out);
	return NULL;
}

int affinity_set(const struct idset *cpus_os)
{
	size_t size = CPU_ALLOC_SIZE(CPUS);
	cpu_set_t *set = CPU_ALLOC(CPUS);

	if (!set) {
		errno = ENOMEM;
		return -1;
	}
	CPU_ZERO_S(size, set);
	for (int cpu = -1; (cpu = idset_next(cpus_os, cpu)) >= 0;)
		CPU_SET_S((size_t)cpu, size, set);
	int rc = sched_setaffinity(0, size, set);
	int saved = errno;

	CPU_FREE(set);
	errno = saved;
	return rc;
}

int affinity_bind(int rank, const struct idset *cpus_os, char *note, size_t size)
{
	if (!idset_count(cpus_os))
		return 0;

	int failed = affinity_set(cpus_os) ? errno : 0, rc = failed ? -1 : 0;
	struct idset *real = affinity_get(0);
	char *wanted_text = idset_format(cpus_os), *real_text = real ? idset_format(real) : NULL;

	if (failed) {
		snprintf(note, size, "rank %d is not bound to CPUs %s: %s", rank,
			 wanted_text ? wanted_text : "?", strerror(failed));
	} else if (real && !idset_equal(real, cpus_os)) {
		rc = 1;
		snprintf(note, size,
			 "rank %d runs on CPUs %s instead of the planned %s: this node does not "
			 "allow the others",
			 rank, real_text ? real_text : "?", wanted_text ? wanted_text : "?");
	}
	free(wanted_text);
	free(real_text);
	idset_free(real);
	return rc;
}
