/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/discovery.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define WAIT_S 2 /* how long to wait for hwloc and NVML when the agent ends */

/* The thread writes inventory and error, then the eventfd; the loop's thread reads them after. */
struct agent_discovery {
	struct loop_source ended; /* first member, so that the callback can cast back; an eventfd */
	struct loop *loop;
	const struct env *env;
	const char *name;
	void (*done)(void *context);
	void *context;
	pthread_t thread;
	bool running; /* the thread was started but not joined yet */
	bool is_done;
	struct inventory_source source;
	struct inventory inventory;
	struct error error;
};

static void *discover(void *context)
{
	struct agent_discovery *discovery = context;
	uint64_t one = 1;

	inventory_discover_from_env(&discovery->source, discovery->env, &discovery->inventory,
				    &discovery->error);
	if (write(discovery->ended.fd, &one, sizeof one) < 0)
		return NULL; /* writing 1 to this eventfd cannot fail */
	return NULL;
}

static void on_thread_ended(struct loop_source *source, uint32_t events)
{
	struct agent_discovery *discovery = (struct agent_discovery *)source;

	(void)events;
	if (discovery->running)
		pthread_join(discovery->thread, NULL);
	loop_close(discovery->loop, source);
	discovery->running = false;
	discovery->is_done = true;
	if (!discovery->error.code && discovery->name) {
		char *name = strdup(discovery->name);

		/* Users know this node by its name in the allocation. */
		if (name) {
			free(discovery->inventory.node);
			discovery->inventory.node = name;
		}
	}
	discovery->done(discovery->context);
}

/* Start the thread once discovery is in the loop. */
static int start_discovery(struct agent_discovery *discovery, struct error *err)
{
	/* inventory_discover parses an XML in a forked child first. A child of a multithreaded
	 * process may inherit a lock that no thread will ever release, so use no thread here.
	 * Without a driver to query, this is quick. */
	if (inventory_topology_file(discovery->env)) {
		discover(discovery);
		return 0;
	}
	if (thread_start(&discovery->thread, discover, discovery))
		return error_set(err, ERR_UNAVAILABLE, "cannot start a thread");
	discovery->running = true;
	return 0;
}

int agent_discovery_start(struct loop *loop, const struct env *env, const char *name,
			  void (*done)(void *context), void *context, struct agent_discovery **out,
			  struct error *err)
{
	struct agent_discovery *discovery = calloc(1, sizeof *discovery);
	int fd, rc;

	if (!discovery)
		return error_memory(err, "the agent");
	*discovery = (struct agent_discovery){.ended = {on_thread_ended, -1, 0},
					      .loop = loop,
					      .env = env,
					      .name = name,
					      .done = done,
					      .context = context};
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		rc = error_set(err, ERR_UNAVAILABLE, "eventfd: %s", strerror(errno));
	else if ((rc = loop_add(loop, &discovery->ended, fd, EPOLLIN, err)))
		close(fd);
	if (!rc)
		rc = start_discovery(discovery, err);
	if (rc)
		agent_discovery_free(discovery);
	else
		*out = discovery;
	return rc;
}

bool agent_discovery_done(const struct agent_discovery *discovery)
{
	return discovery && discovery->is_done;
}

const struct inventory *agent_discovery_result(const struct agent_discovery *discovery,
					       struct error *err)
{
	if (err)
		*err = discovery->error;
	return &discovery->inventory;
}

void agent_discovery_free(struct agent_discovery *discovery)
{
	if (!discovery || (discovery->running && !clock_join(discovery->thread, WAIT_S * 1000)))
		return;
	loop_close(discovery->loop, &discovery->ended);
	inventory_free(&discovery->inventory);
	free(discovery);
}
