/* SPDX-License-Identifier: BSD-3-Clause */
/* Source "hosts": the user names the hosts, as a list or in a host file. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/alloc.h"
#include "base/bytes.h"
#include "hostlist/hostlist.h"

static int hosts_present(const struct env *env, const struct alloc_request *request)
{
	(void)env;
	return request->hosts || request->hostfile;
}

/* A repeated host would get two agents. nodefile_parse has already checked host files. */
static int reject_duplicates(const struct hosts *hosts, struct error *err)
{
	const char *twice;
	int rc = hosts_duplicate(hosts, &twice, err);

	if (rc || !twice)
		return rc;
	return error_set(err, ERR_DATA,
			 "host '%s' is listed twice; list each host once, or use a --hostfile with "
			 "lines such as %s slots=2",
			 twice, twice);
}

static int fill(struct hosts *hosts, const char *why, bool slots_given, struct alloc *made,
		struct error *err)
{
	char host[256] = "localhost";

	gethostname(host, sizeof host - 1);
	made->why = strdup(why);
	made->job_id =
		text_format("hosts-%s-%ld-%lld", host, (long)getpid(), (long long)time(NULL));
	if (!made->why || !made->job_id)
		return error_memory(err, "the allocation");
	return alloc_set_nodes(made, hosts, slots_given, err);
}

static int read_hosts(const struct env *env, const struct alloc_request *request, struct alloc *out,
		      struct error *err)
{
	struct hosts hosts = {0};
	int rc;

	(void)env;
	if (request->hosts && request->hostfile)
		return error_set(
			err, ERR_USAGE,
			"both a host list ('%s') and a host file ('%s') are given; give one",
			request->hosts, request->hostfile);
	rc = request->hosts ? hostlist_expand(request->hosts, &hosts, err)
			    : nodefile_read(request->hostfile, true, &hosts, err);
	if (!rc && !hosts.count)
		rc = error_set(err, ERR_DATA, "'%s' contains no host",
			       request->hosts ? request->hosts : request->hostfile);
	if (!rc && request->hosts)
		rc = reject_duplicates(&hosts, err);
	if (!rc)
		rc = fill(&hosts, request->hosts ? "--hosts is given" : "--hostfile is given",
			  request->hostfile != NULL, out, err);
	hosts_free(&hosts);
	return rc;
}

const struct alloc_source alloc_source_hosts = {ALLOC_FROM_HOSTS, hosts_present, read_hosts};
