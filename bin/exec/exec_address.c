/* SPDX-License-Identifier: BSD-3-Clause */
#include "exec/exec_address.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/alloc.h"
#include "hostlist/hostlist.h"

#define HINT                                                                                       \
	"pass the same --master-addr ADDRESS and --port PORT to berth exec on all ranks (or set "  \
	"MASTER_ADDR and "                                                                         \
	"MASTER_PORT): an address of rank 0's node that all ranks reach, and a port "              \
	"that is free there"

static bool one_node(const struct exec_place *place)
{
	return place->local_size == place->size;
}

static int refuse_master_addr(const struct exec_place *place, struct error *err)
{
	return error_set(err, ERR_UNAVAILABLE,
			 "%s started %d ranks on several nodes but does not report the address of "
			 "rank 0: " HINT "; use --master-addr none if PROGRAM needs neither (MPI "
			 "programs); berth run finds both itself",
			 place->started_by, place->size);
}

static int add_master_addr(const struct exec_place *place, const struct exec_rendezvous *rendezvous,
			   const struct env *env, struct env *changes, struct error *err)
{
	const char *list = env_get(env, "SLURM_STEP_NODELIST");
	struct hosts hosts = {0};
	int rc;

	if (rendezvous->master_addr &&
	    (!*rendezvous->master_addr || strpbrk(rendezvous->master_addr, "[] \t,")))
		return error_set(
			err, ERR_USAGE,
			"--master-addr '%s': expected a bare address or host name, or none",
			rendezvous->master_addr);
	if (rendezvous->master_addr)
		return env_set(changes, "MASTER_ADDR", rendezvous->master_addr, ENV_FROM_OPTION,
			       "--master-addr", err);
	if (alloc_env(env, "MASTER_ADDR"))
		return 0;
	if (one_node(place))
		return env_set(changes, "MASTER_ADDR", rendezvous->loopback, ENV_FROM_BERTH,
			       "one node", err);
	if (!list || strcmp(place->detected_by, "SLURM_STEP_ID"))
		return refuse_master_addr(place, err);
	rc = hostlist_expand(list, &hosts, err);
	if (rc)
		return error_prefix(err, "SLURM_STEP_NODELIST");
	rc = hosts.count ? env_set(changes, "MASTER_ADDR", hosts.names[0], ENV_FROM_BERTH,
				   "the name of the step's first node", err)
			 : refuse_master_addr(place, err);
	hosts_free(&hosts);
	return rc;
}

int exec_address_try(int port, struct error *err)
{
	const struct sockaddr_in6 any6 = {.sin6_family = AF_INET6,
					  .sin6_port = htons((uint16_t)port)};
	const struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, off = 0, rc = 0;

	if (fd >= 0) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		rc = bind(fd, (const struct sockaddr *)&any6, sizeof any6);
	} else if ((fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		rc = bind(fd, (const struct sockaddr *)&any4, sizeof any4);
	}
	int seen = errno;

	if (fd >= 0)
		close(fd);
	if (!rc || (seen != EADDRINUSE && seen != EACCES))
		return 0; /* an anomaly here may not matter to the program */
	return error_set(err, ERR_UNAVAILABLE,
			 "cannot use MASTER_PORT %d on rank 0's node: %s; set another port for all "
			 "ranks with --port or MASTER_PORT",
			 port, strerror(seen));
}

static int add_port(const struct exec_place *place, const struct exec_rendezvous *rendezvous,
		    const struct env *env, struct env *changes, struct error *err)
{
	int port = rendezvous->port, rc;

	if (!port && alloc_env(env, "MASTER_PORT"))
		return 0; /* whoever set it may hold it already, as torchrun does */
	/* A job without a name is identified by its launcher's pid, which only the ranks of one
	 * node share. */
	if (!port && !place->job[0] && !one_node(place))
		return error_set(err, ERR_UNAVAILABLE,
				 "%s started ranks on several nodes without a job name from which "
				 "all could derive the same MASTER_PORT: " HINT,
				 place->started_by);
	if (!port)
		port = exec_place_port(place, rendezvous->launcher_pid);
	rc = env_setf(changes, "MASTER_PORT", rendezvous->port ? ENV_FROM_OPTION : ENV_FROM_BERTH,
		      rendezvous->port ? "--port"
		      : place->rank    ? "derived from the job's name; rank 0 tests it"
				       : "derived from the job's name; it was free a moment ago",
		      err, "%d", port);
	return rc || place->rank ? rc : exec_address_try(port, err);
}

/* Only if both are known by now. */
static int add_jax(const struct env *env, struct env *changes, struct error *err)
{
	const char *master_addr = alloc_env(changes, "MASTER_ADDR"),
		   *port = alloc_env(changes, "MASTER_PORT");

	master_addr = master_addr ? master_addr : alloc_env(env, "MASTER_ADDR");
	port = port ? port : alloc_env(env, "MASTER_PORT");
	if (!master_addr || !port || env_get(env, "JAX_COORDINATOR_ADDRESS"))
		return 0;

	bool v6 = strchr(master_addr, ':') != NULL;

	return env_setf(changes, "JAX_COORDINATOR_ADDRESS", ENV_FROM_BERTH,
			"rank 0's address for jax.distributed", err, "%s%s%s:%s", v6 ? "[" : "",
			master_addr, v6 ? "]" : "", port);
}

int exec_address_add(const struct exec_place *place, const struct exec_rendezvous *rendezvous,
		     const struct env *env, struct env *changes, struct error *err)
{
	int rc;

	if (rendezvous->master_addr && !strcmp(rendezvous->master_addr, "none"))
		return 0;
	rc = add_master_addr(place, rendezvous, env, changes, err);
	if (!rc)
		rc = add_port(place, rendezvous, env, changes, err);
	return rc ? rc : add_jax(env, changes, err);
}
