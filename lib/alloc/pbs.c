/* SPDX-License-Identifier: BSD-3-Clause */
/* Source "pbs": the variables and the node file of PBS Pro, OpenPBS and Torque.
 *
 * The node file has one line per slot (mpiprocs, Torque's ppn) or one per chunk. A chunk is not a
 * node, and a host's lines need not be adjacent. Names are kept as they are: pbs_tmrsh requires
 * exactly these, although hostname and exec_host are short. NCPUS belongs to the first chunk only
 * and is ignored. Sources: captures from OpenPBS 23.06 (tests/unit/alloc/pbs),
 * pbs_resources(7B). */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "alloc/alloc.h"
#include "alloc/pbs.h"
#include "base/bytes.h"
#include "base/number.h"
#include "hostlist/hostlist.h"

#define JOB_ID_MAX 255

static int pbs_present(const struct env *env, const struct alloc_request *request)
{
	(void)request;
	return alloc_env(env, "PBS_JOBID") != NULL;
}

int pbs_duration(const char *name, const char *text, int64_t *seconds, struct error *err)
{
	static const int64_t factor[] = {1, 60, 3600, 86400};
	int64_t fields[4], total = 0;
	const char *at = text;
	int count = 0, rc = 0;

	for (;; at++) {
		size_t size = strspn(at, "0123456789");
		char digits[12];

		if (!size || size >= sizeof digits || count == 4)
			break;
		snprintf(digits, sizeof digits, "%.*s", (int)size, at);
		rc = number_int64(name, digits, 0, 3600000000, &fields[count], err);
		if (rc)
			return rc;
		count++;
		at += size;
		if (*at != ':')
			break;
	}
	if (*at == '.' && count)
		at += 1 + strspn(at + 1, "0123456789");
	if (*at || !count || (at > text && at[-1] == ':'))
		return error_set(err, ERR_DATA,
				 "%s is '%.60s', expected a time such as 3600 or 01:00:00", name,
				 text);
	for (int i = 0; i < count; i++) {
		int unit = count - 1 - i;

		if (i && unit < 2 && fields[i] > 59)
			return error_set(err, ERR_DATA,
					 "%s is '%.60s', which has %d %s; expected at most 59",
					 name, text, (int)fields[i], unit ? "minutes" : "seconds");
		total += fields[i] * factor[unit];
	}
	*seconds = total;
	return 0;
}

/* ---- the job ---- */

/* "1234.server" or "1234[7].server"; it also becomes an argument of qstat. */
static int check_id(const char *id, struct error *err)
{
	const char *at = id + strspn(id, "0123456789");

	if (at > id && *at == '[') {
		size_t index = strspn(at + 1, "0123456789");

		if (!index)
			return error_set(err, ERR_DATA,
					 "PBS_JOBID is '%.80s', which is a whole job array; "
					 "expected one of its jobs, such as 64[0].server",
					 id);
		at += 1 + index;
		at = *at == ']' ? at + 1 : id;
	}
	if (at > id && (!*at || (*at == '.' && at[1])) && strlen(id) <= JOB_ID_MAX &&
	    !at[strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")])
		return 0;
	return error_set(
		err, ERR_DATA,
		"PBS_JOBID is '%.80s', expected a job such as 1234.server or 1234[7].server", id);
}

static int no_node_file(const struct env *env, struct error *err)
{
	if (alloc_env(env, "PBS_TASKNUM") && alloc_env(env, "PBS_JOBCOOKIE"))
		return error_set(err, ERR_DATA,
				 "PBS_JOBID is set (%.80s), but PBS_NODEFILE is not: pbsdsh or "
				 "pbs_tmrsh started this task on the job's first node. Instead, "
				 "start berth once for all nodes, in the job script or in qsub -I.",
				 alloc_env(env, "PBS_JOBID"));
	return error_set(err, ERR_DATA,
			 "PBS_JOBID is set (%.80s), but PBS_NODEFILE is not, although PBS sets "
			 "both in a job. Start berth in the job (qsub), or unset PBS_JOBID.",
			 alloc_env(env, "PBS_JOBID"));
}

static int read_nodes(const struct env *env, struct alloc *made, struct error *err)
{
	const char *path = alloc_env(env, "PBS_NODEFILE");
	struct hosts hosts = {0};
	int rc = path ? nodefile_read(path, false, &hosts, err) : no_node_file(env, err);

	if (path && rc)
		error_prefix(err, "PBS_NODEFILE");
	if (!rc && !hosts.count)
		rc = error_set(err, ERR_DATA, "PBS_NODEFILE is %s, which lists no node", path);
	if (!rc)
		rc = alloc_set_nodes(made, &hosts, true, err);
	hosts_free(&hosts);
	return rc;
}

/* PBS_NODENUM is the index among the hosts, in the order of PBS's own node file. */
static int find_this_node(const struct env *env, struct alloc *made, struct error *err)
{
	const char *text = alloc_env(env, "PBS_NODENUM");
	struct hosts hosts = {0};
	char path[1024];
	int node, rc;
	bool own;

	if (!text)
		return 0;
	rc = number_int("PBS_NODENUM", text, 0, 1 << 20, &node, err);
	own = !rc && !pbs_node_file(env, path, sizeof path) &&
	      !nodefile_read(path, false, &hosts, NULL) && (size_t)node < hosts.count;
	for (int i = 0; own && (size_t)i < made->node_count; i++)
		if (hostlist_same_host(made->nodes[i].name, hosts.names[node]))
			made->this_node = i;
	hosts_free(&hosts);
	if (own)
		return 0;
	if (!rc && (size_t)node >= made->node_count)
		rc = error_set(err, ERR_DATA,
			       "PBS_NODENUM is %d, but the node file lists %zu node%s: they belong "
			       "to different jobs. Check whether the variables of another job were "
			       "exported into this one.",
			       node, made->node_count, made->node_count == 1 ? "" : "s");
	if (!rc)
		made->this_node = node;
	return rc;
}

/* ---- GPUs ---- */

/* Torque's PBS_GPUFILE: "n1-gpu0", one line per GPU. */
static int read_gpu_file(const struct env *env, struct alloc *made, struct error *err)
{
	const char *path = alloc_env(env, "PBS_GPUFILE");
	struct hosts hosts = {0};
	int rc = path ? nodefile_read(path, false, &hosts, err) : 0;

	if (rc)
		return error_prefix(err, "PBS_GPUFILE");
	for (size_t i = 0; path && i < made->node_count; i++)
		made->nodes[i].gpus = 0;
	for (size_t g = 0; !rc && g < hosts.count; g++) {
		char *dash = strstr(hosts.names[g], "-gpu");
		bool found = false;

		for (char *later = dash; later && (later = strstr(later + 1, "-gpu"));)
			dash = later;
		if (dash)
			*dash = '\0';
		for (size_t i = 0; dash && !found && i < made->node_count; i++)
			if ((found = hostlist_same_host(made->nodes[i].name, hosts.names[g])))
				made->nodes[i].gpus++;
		if (!found)
			rc = error_set(err, ERR_DATA,
				       "PBS_GPUFILE (%s) has '%.80s', expected lines such as "
				       "HOST-gpu0 with hosts of the node file",
				       path, hosts.names[g]);
	}
	hosts_free(&hosts);
	return rc;
}

/* The cgroups hook sets UUIDs, or nothing if no GPUs were requested. Ordinals may be the user's own
 * choice and do not show what was granted. */
static void count_visible(const struct env *env, struct alloc *made)
{
	const char *list = env_get(env, "CUDA_VISIBLE_DEVICES");
	int count = 0;

	if (!list || made->this_node < 0 || alloc_env(env, "PBS_GPUFILE"))
		return;
	list += strspn(list, "\\ \"'");
	if (*list && strncmp(list, "GPU-", 4) && strncmp(list, "MIG-", 4))
		return;
	for (; *list; list += strspn(list, "\\, \"'"), count++)
		list += strcspn(list, "\\,");
	made->nodes[made->this_node].gpus = count;
}

static int set_job_id(const struct env *env, struct alloc *made, struct error *err)
{
	const char *id = alloc_env(env, "PBS_JOBID"), *kind = alloc_env(env, "PBS_ENVIRONMENT");

	made->job_id = strdup(id);
	made->why = text_format("PBS_JOBID is set%s; the nodes come from PBS_NODEFILE",
				kind && !strcmp(kind, "PBS_INTERACTIVE") ? " (qsub -I)" : "");
	if (strchr(id, '['))
		made->array_task = strdup(id);
	if (!made->job_id || !made->why || (strchr(id, '[') && !made->array_task))
		return error_memory(err, "the allocation");
	return 0;
}

static int read_pbs(const struct env *env, const struct alloc_request *request, struct alloc *out,
		    struct error *err)
{
	const char *walltime = alloc_env(env, "PBS_WALLTIME");
	int64_t ignored;
	int rc = check_id(alloc_env(env, "PBS_JOBID"), err);

	(void)request;
	if (!rc)
		rc = read_nodes(env, out, err);
	if (!rc)
		rc = find_this_node(env, out, err);
	if (!rc)
		rc = read_gpu_file(env, out, err);
	if (!rc && walltime)
		rc = pbs_duration("PBS_WALLTIME", walltime, &ignored, err);
	if (!rc)
		rc = set_job_id(env, out, err);
	if (!rc)
		count_visible(env, out);
	return rc;
}

const struct alloc_source alloc_source_pbs = {ALLOC_FROM_PBS, pbs_present, read_pbs};
