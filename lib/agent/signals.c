/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"

#define DUPLICATE_MS 500 /* window for the same signal from its sender and from the guardian */
#define STEP_MS 2000	 /* window for the same signal from the launcher and from the controller */
#define STEP_WAIT_MS 100 /* wait this long for the launcher's signal after the controller's */

/* A signal to all processes of a job step also reaches the guardian, which forwards it. Count
 * that as one signal, not two. */
static bool is_duplicate(struct agent_signals *signals, const struct signalfd_siginfo *info)
{
	bool forwarded = (pid_t)info->ssi_pid == signals->guardian;
	int64_t now = loop_now_ms(signals->loop), before = signals->list[info->ssi_signo].ms;
	bool duplicate = before && now - before < DUPLICATE_MS &&
			 signals->list[info->ssi_signo].forwarded != forwarded;

	signals->list[info->ssi_signo].ms = duplicate ? 0 : now;
	signals->list[info->ssi_signo].forwarded = forwarded;
	return duplicate;
}

static void on_signals(struct loop_source *source, uint32_t events)
{
	struct agent_signals *signals = (struct agent_signals *)source;
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info) {
		pid_t sender = (pid_t)info.ssi_pid;
		bool from_launcher = sender == signals->launcher_pid || sender == signals->guardian;

		if (sender == signals->launcher_pid)
			signals->list[info.ssi_signo].step_ms = loop_now_ms(signals->loop);
		log_info(LOG_AGENT, "received signal %d from process %d", (int)info.ssi_signo,
			 (int)info.ssi_pid);
		if (!is_duplicate(signals, &info))
			agent_uplink_report(
				signals->uplink, MESSAGE_SIGNALLED,
				&(struct message_signalled){(int)info.ssi_signo, from_launcher});
	}
}

static void await_deferred(struct agent_signals *signals)
{
	int64_t due_ms = 0;

	for (int number = 1; number < NSIG; number++) {
		int64_t its_ms = signals->list[number].due_ms;

		if (its_ms && (!due_ms || its_ms < due_ms))
			due_ms = its_ms;
	}
	if (due_ms)
		loop_timer_set(signals->loop, &signals->deferred, due_ms);
}

static void on_deferred(struct loop_timer *timer)
{
	struct agent_signals *signals = LOOP_OWNER(timer, struct agent_signals, deferred);
	int64_t now_ms = loop_now_ms(signals->loop);

	for (int number = 1; number < NSIG; number++) {
		int64_t due_ms = signals->list[number].due_ms,
			step_ms = signals->list[number].step_ms;

		if (!due_ms || now_ms < due_ms)
			continue;
		signals->list[number].due_ms = 0;
		if (!step_ms || now_ms - step_ms > STEP_MS)
			agent_ranks_signal(signals->ranks, number);
	}
	await_deferred(signals);
}

int agent_signals_open(struct agent_signals *signals, struct loop *loop,
		       struct agent_uplink *uplink, struct agent_ranks *ranks, pid_t guardian,
		       pid_t launcher_pid, bool in_step, struct error *err)
{
	static const int forwarded[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT};

	*signals = (struct agent_signals){.source = {on_signals, -1, 0},
					  .deferred.due = on_deferred,
					  .loop = loop,
					  .uplink = uplink,
					  .ranks = ranks,
					  .guardian = guardian,
					  .launcher_pid = launcher_pid,
					  .in_step = in_step};
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	return loop_add_signals(loop, &signals->source, forwarded,
				sizeof forwarded / sizeof *forwarded, err);
}

/* scancel signals every process of the step through Slurm's own daemons. This process is in its
 * own session, and receives slurmstepd's signal when the ranks do. So hold the controller's
 * signal back, and drop it if slurmstepd's arrives. */
bool agent_signals_defer(struct agent_signals *signals, int number)
{
	if (number == SIGSTOP || number == SIGCONT)
		return false;
	if (signals->in_step && number < NSIG && !signals->list[number].due_ms) {
		signals->list[number].due_ms = loop_now_ms(signals->loop) + STEP_WAIT_MS;
		await_deferred(signals);
	}
	return signals->in_step;
}

void agent_signals_close(struct agent_signals *signals)
{
	loop_timer_stop(&signals->deferred);
	loop_close(signals->loop, &signals->source);
}
