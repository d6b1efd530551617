/* SPDX-License-Identifier: BSD-3-Clause */
/* The job data registered with PMIx: sizes, maps, and each rank's place. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "pmix/client_wait.h"
#include "pmix/server.h"

/* libpmix 4.2.2 writes a name into 50 bytes when it makes a regular expression of several. */
#define NODE_NAME_MAX 50

#define REGISTER_TIMEOUT_MS 10000

/* Job data under construction; the first failure sticks. */
struct list {
	void *items;
	pmix_status_t status;
};

static struct list list_new(void)
{
	struct list list = {.items = PMIx_Info_list_start(), .status = PMIX_SUCCESS};

	if (!list.items)
		list.status = PMIX_ERR_NOMEM;
	return list;
}

static void add_info(struct list *list, const char *key, const void *value, pmix_data_type_t type)
{
	if (list->status == PMIX_SUCCESS)
		list->status = PMIx_Info_list_add(list->items, key, value, type);
}

static void add_u32(struct list *list, const char *key, uint32_t value)
{
	add_info(list, key, &value, PMIX_UINT32);
}

static void add_rank(struct list *list, const char *key, pmix_rank_t value)
{
	add_info(list, key, &value, PMIX_PROC_RANK);
}

static void add_text(struct list *list, const char *key, const char *value)
{
	add_info(list, key, value, PMIX_STRING);
}

/* Close part and add it to list as an array under key. */
static void add_part(struct list *list, const char *key, struct list *part)
{
	pmix_data_array_t array = {0};

	if (part->status == PMIX_SUCCESS)
		part->status = PMIx_Info_list_convert(part->items, &array);
	if (list->status == PMIX_SUCCESS)
		list->status = part->status;
	add_info(list, key, &array, PMIX_DATA_ARRAY);
	PMIX_DATA_ARRAY_DESTRUCT(&array);
	if (part->items)
		PMIx_Info_list_release(part->items);
}

/* "0,1,2": the ranks of a node. Not all of PMIx's parsers understand ranges. */
static char *format_ranks(int first, int count)
{
	struct words words = {0};

	for (int i = 0; i < count; i++)
		words_add(&words, "%d", first + i);
	return words_join(&words, ',');
}

/* Add the malloced text and free it; NULL: memory is out. */
static void add_malloced(struct list *list, const char *key, char *text)
{
	if (text)
		add_text(list, key, text);
	else
		list->status = PMIX_ERR_NOMEM;
	free(text);
}

/* Which nodes, and which ranks on each, in PMIx's own notation. */
static void add_maps(struct list *list, const struct ranks_job *job)
{
	char *node_text, *rank_text, *node_map = NULL, *rank_map = NULL;
	struct words nodes = {0}, ranks = {0};
	bool long_name = false;

	/* PMIx does not accept a node without ranks. */
	for (int n = 0; n < job->node_count; n++) {
		if (!job->rank_count[n])
			continue;
		words_add(&nodes, "%s", job->nodes[n]);
		long_name |= strlen(job->nodes[n]) >= NODE_NAME_MAX;
		rank_text = format_ranks(job->first_rank[n], job->rank_count[n]);
		words_add(&ranks, "%s", rank_text ? rank_text : "");
		ranks.failed |= !rank_text;
		free(rank_text);
	}
	node_text = words_join(&nodes, ',');
	rank_text = words_join(&ranks, ';');
	if (!node_text || !rank_text)
		list->status = PMIX_ERR_NOMEM;
	if (list->status == PMIX_SUCCESS && long_name) /* the plain list, PMIx's other notation */
		node_map = text_format("raw:%s", node_text);
	else if (list->status == PMIX_SUCCESS)
		list->status = PMIx_generate_regex(node_text, &node_map);
	if (list->status == PMIX_SUCCESS)
		list->status = PMIx_generate_ppn(rank_text, &rank_map);
	add_info(list, PMIX_NODE_MAP, node_map, PMIX_REGEX);
	add_info(list, PMIX_PROC_MAP, rank_map, PMIX_REGEX);
	add_malloced(list, PMIX_NODE_LIST, node_text);
	free(node_map);
	free(rank_map);
	free(rank_text);
}

static void add_local_cpusets(struct list *list, const struct ranks_job *job, int count)
{
	struct words words = {0};

	for (int i = 0; job->cpus && i < count; i++)
		words_add(&words, "%s", job->cpus[i] ? job->cpus[i] : "");
	if (job->cpus)
		add_malloced(list, PMIX_LOCAL_CPUSETS, words_join(&words, ':'));
}

/* Cores, caches and NUMA node of a rank in PMIx's notation, from its "0-3,8". Without a topology,
 * or for CPUs that it lacks, nothing is added, which readers take as "same node". */
static void add_locality(struct list *list, const char *cpus)
{
	hwloc_bitmap_t bitmap = server_library_topology() ? hwloc_bitmap_alloc() : NULL;

	if (!bitmap)
		return;
	char source[] = "hwloc";
	pmix_cpuset_t cpuset = {.source = source, .bitmap = bitmap};
	char *locality = NULL;

	if (!hwloc_bitmap_list_sscanf(bitmap, cpus) && !hwloc_bitmap_iszero(bitmap) &&
	    PMIx_server_generate_locality_string(&cpuset, &locality) == PMIX_SUCCESS && locality)
		add_text(list, PMIX_LOCALITY_STRING, locality);
	free(locality);
	hwloc_bitmap_free(bitmap);
}

static void add_proc(struct list *list, const struct ranks_server *server,
		     const struct ranks_job *job, int node, int index)
{
	struct list part = list_new();
	int rank = job->first_rank[node] + index;

	add_rank(&part, PMIX_RANK, (pmix_rank_t)rank); /* must be the first */
	add_rank(&part, PMIX_GLOBAL_RANK, (pmix_rank_t)rank);
	add_rank(&part, PMIX_APP_RANK, (pmix_rank_t)rank);
	uint16_t local = (uint16_t)index;

	add_info(&part, PMIX_LOCAL_RANK, &local, PMIX_UINT16);
	add_info(&part, PMIX_NODE_RANK, &local, PMIX_UINT16);
	add_u32(&part, PMIX_APPNUM, 0);
	add_u32(&part, PMIX_NODEID, (uint32_t)node);
	add_text(&part, PMIX_HOSTNAME, job->nodes[node]);
	/* Always 0: each attempt has a namespace of its own. */
	add_u32(&part, PMIX_REINCARNATION, 0);
	bool no = false;

	add_info(&part, PMIX_SPAWNED, &no, PMIX_BOOL);
	/* Of ranks of other nodes, neither the directory nor the CPUs are known here. */
	if (node == job->node_index) {
		char dir[4096];

		snprintf(dir, sizeof dir, "%s/ranks/%d", server->dir, rank);
		add_text(&part, PMIX_PROCDIR, dir);
		if (job->cpus && job->cpus[index]) {
			add_text(&part, PMIX_CPUSET, job->cpus[index]);
			add_locality(&part, job->cpus[index]);
		}
	}
	add_part(list, PMIX_PROC_INFO_ARRAY, &part);
}

static uint32_t nodes_with_ranks(const struct ranks_job *job)
{
	uint32_t count = 0;

	for (int n = 0; n < job->node_count; n++)
		count += job->rank_count[n] > 0;
	return count;
}

static void add_sizes(struct list *list, const struct ranks_job *job)
{
	struct list session = list_new(), app = list_new();
	uint32_t size = (uint32_t)job->world_size;

	add_u32(&session, PMIX_SESSION_ID, 0);
	add_u32(&session, PMIX_UNIV_SIZE, size);
	add_u32(&session, PMIX_NUM_NODES, nodes_with_ranks(job));
	add_part(list, PMIX_SESSION_INFO_ARRAY, &session);

	add_u32(&app, PMIX_APPNUM, 0);
	add_u32(&app, PMIX_APP_SIZE, size);
	add_rank(&app, PMIX_APPLDR, 0);
	add_part(list, PMIX_APP_INFO_ARRAY, &app);

	add_text(list, PMIX_JOBID, job->name);
	add_u32(list, PMIX_UNIV_SIZE, size);
	add_u32(list, PMIX_JOB_SIZE, size);
	add_u32(list, PMIX_MAX_PROCS, size);
	add_u32(list, PMIX_JOB_NUM_APPS, 1);
	add_u32(list, PMIX_NUM_NODES, nodes_with_ranks(job));
	add_rank(list, PMIX_NPROC_OFFSET, 0);
}

static void add_node(struct list *list, const struct ranks_job *job)
{
	int node = job->node_index, first = job->first_rank[node], count = job->rank_count[node];

	add_u32(list, PMIX_LOCAL_SIZE, (uint32_t)count);
	add_u32(list, PMIX_NODE_SIZE, (uint32_t)count);
	add_rank(list, PMIX_LOCALLDR, (pmix_rank_t)first);
	add_malloced(list, PMIX_LOCAL_PEERS, format_ranks(first, count));
	add_local_cpusets(list, job, count);
}

static void add_dirs(struct list *list, const struct ranks_server *server)
{
	char dir[4096];
	bool yes = true;

	snprintf(dir, sizeof dir, "%s/ranks", server->dir);
	add_text(list, PMIX_TMPDIR, server->dir);
	add_text(list, PMIX_NSDIR, dir);
	/* The ranks need not clean up: stop in server.c removes the directories. */
	add_info(list, PMIX_TDIR_RMCLEAN, &yes, PMIX_BOOL);
}

/* Directories named to the ranks must exist: Open MPI puts its own files in them. */
static int make_dirs(const struct ranks_server *server, struct error *err)
{
	char dir[4096];

	for (int i = -1; i < server->local_count; i++) {
		int length = i < 0 ? snprintf(dir, sizeof dir, "%s/ranks", server->dir)
				   : snprintf(dir, sizeof dir, "%s/ranks/%d", server->dir,
					      server->first_rank + i);
		if ((size_t)length >= sizeof dir || (mkdir(dir, 0700) && errno != EEXIST))
			return error_set(
				err, ERR_OUTPUT, "cannot create directory %s: %s", dir,
				strerror((size_t)length >= sizeof dir ? ENAMETOOLONG : errno));
	}
	return 0;
}

static int register_clients(struct ranks_server *server, struct error *err)
{
	for (int i = 0; i < server->local_count; i++) {
		pmix_proc_t proc;
		struct client_wait *wait = client_wait_new();

		if (!wait)
			return error_memory(err, "registering ranks with PMIx");
		PMIX_LOAD_PROCID(&proc, server->name, (pmix_rank_t)(server->first_rank + i));
		int status = PMIx_server_register_client(&proc, geteuid(), getegid(), NULL,
							 client_wait_done, wait);

		status = client_wait_end(wait, status, REGISTER_TIMEOUT_MS, NULL, NULL);
		if (status != PMIX_SUCCESS)
			return error_set(err, ERR_UNAVAILABLE, "PMIx rejected local rank %d: %s", i,
					 PMIx_Error_string(status));
	}
	return 0;
}

int server_register(struct ranks_server *server, const struct ranks_job *job, struct error *err)
{
	int rc = make_dirs(server, err);

	if (rc)
		return rc;
	struct list list = list_new();
	pmix_data_array_t array = {0};
	struct client_wait *wait = client_wait_new();

	add_sizes(&list, job);
	add_maps(&list, job);
	add_node(&list, job);
	add_dirs(&list, server);
	for (int n = 0; n < job->node_count; n++)
		for (int i = 0; i < job->rank_count[n]; i++)
			add_proc(&list, server, job, n, i);
	pmix_nspace_t name;
	int status = wait ? list.status : PMIX_ERR_NOMEM;

	PMIX_LOAD_NSPACE(name, server->name);
	if (status == PMIX_SUCCESS)
		status = PMIx_Info_list_convert(list.items, &array);
	if (status == PMIX_SUCCESS)
		status = PMIx_server_register_nspace(name, server->local_count, array.array,
						     array.size, client_wait_done, wait);
	if (wait)
		status = client_wait_end(wait, status, REGISTER_TIMEOUT_MS, NULL, NULL);
	PMIX_DATA_ARRAY_DESTRUCT(&array);
	if (list.items)
		PMIx_Info_list_release(list.items);
	if (status != PMIX_SUCCESS)
		return error_set(err, ERR_UNAVAILABLE, "PMIx rejected job %s with %d ranks: %s",
				 server->name, job->world_size, PMIx_Error_string(status));
	return register_clients(server, err);
}

/* The end of the job's deregistration, which PMIx handles after these, is awaited instead. */
static void ignore_end(pmix_status_t status, void *context)
{
	(void)status;
	(void)context;
}

void server_deregister(const struct ranks_server *server, int timeout_ms)
{
	struct client_wait *wait = client_wait_new();
	pmix_nspace_t name;

	PMIX_LOAD_NSPACE(name, server->name);
	/* PMIx removes the files of a killed rank when it sees the end of the rank's connection. If
	 * it has not seen it yet, this removes them. */
	for (int i = 0; i < server->local_count; i++) {
		pmix_proc_t proc;

		PMIX_LOAD_PROCID(&proc, server->name, (pmix_rank_t)(server->first_rank + i));
		PMIx_server_deregister_client(&proc, ignore_end, NULL);
	}
	PMIx_server_deregister_nspace(name, wait ? client_wait_done : NULL, wait);
	if (wait)
		client_wait_end(wait, PMIX_SUCCESS, timeout_ms, NULL, NULL);
}
