/* SPDX-License-Identifier: BSD-3-Clause */
/* What to do with the roles of a job, given how far each has come. Pure. */
#ifndef BERTH_ROLES_DECIDE_H
#define BERTH_ROLES_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLES_MAX 64

enum role_state {
	ROLE_OPEN,     /* its agents are not complete */
	ROLE_KNOWN,    /* it has all inventories */
	ROLE_PREPARED, /* its ranks may be started */
	ROLE_STARTING,
	ROLE_READY, /* all ranks run, and others may use what it offers */
	ROLE_ENDING,
	ROLE_OVER,
};

/* What the user asked of a role. In masks bit k stands for role k, of replicas for the first one.
 */
struct role_rule {
	bool service;
	bool offers;	    /* it has done its part once it is ready, as services have */
	int group;	    /* the first of its replicas, or itself */
	int need;	    /* as many of its replicas have to be ready, and to remain; 0: all */
	uint64_t after;	    /* of --after */
	bool after_default; /* after all services, see roles_order */
	uint64_t waits;	    /* it starts once these are ready, or have ended: by roles_order */
};

struct role_view {
	const struct role_rule *rule;
	enum role_state state;
	bool takes_rest; /* what the others leave on its node */
	bool finished;	 /* all its ranks have ended, and well */
	bool failed;
	bool restarts;	   /* a service that may be restarted alone, if it fails */
	bool stopped;	   /* a rank has saved and stopped (code 75), so all should */
	int64_t silent_ms; /* for how long it has shown no sign of work */
};

enum role_action {
	ROLE_WAIT,
	ROLE_PROBE,   /* its nodes may try the others' addresses */
	ROLE_PLAN,    /* likewise, and it is its turn to plan */
	ROLE_START,   /* its ranks */
	ROLE_END,     /* another role has failed */
	ROLE_STOP,    /* another role has stopped with its work saved: give it time to save, too */
	ROLE_RESTART, /* it has failed, and is started again */
	ROLE_FORGO,   /* it has failed, and enough replicas are left */
	ROLE_DISMISS, /* no role needs the service any more, nor does a service after it */
};

/* The action for each of count roles. *first: the role whose failure is the job's; -1: none so far,
 * then set if there is one now. A service that ends after the others have finished is not one.
 * interrupted: all have received a stop signal, and end by themselves. ROLE_PROBE, ROLE_PLAN and
 * ROLE_START are repeated until the state shows that they were done. */
void roles_decide(const struct role_view *roles, size_t count, bool interrupted, long *first,
		  enum role_action *actions);

/* Set waits of each rule: after, or by default all services; a role that prepares for a service
 * waits by default only for services that need no such role. Return the first role that would wait
 * for itself, or -1. */
long roles_order(struct role_rule *rules, size_t count);

/* The first role that looks like a server without --service, or -1: another role has finished, and
 * all that still work began beside it and have been silent for a minute. */
long roles_find_server(const struct role_view *roles, size_t count);

#endif
