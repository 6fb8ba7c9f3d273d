/*
 * A mirrored pair with a file for each partner, whose roles come by a command: `mirroring = "command"`.
 *
 * Time passes in ticks. Between any two steps of a partner any number of them may pass, up to SLOW in all while it has
 * something to do: so long it stands still, or an answer is on its way. What decides about the roles (arbiter) stands
 * outside of the product, and so does the copying of the file; both do what docs/mirroring.md asks of them: nobody else
 * is named before role_timeout has passed since the last `principal`, unless the former one has heard `mirror` and says so,
 * or is gone; and the file is copied behind that, and before another one is named. One partner at a time stands still.
 *
 *   in the model              in the code
 *   -----------------------   -------------------------------------------------------------------------------------
 *   standing, hear()          broker.routing.mirrored.MirrorState, TRANSITIONS; standing.pml is made of that table
 *   believed                  broker.routing.mirrored.MirroredRoute, its epoch
 *   role, epoch               broker.routing.mirrored.OwnRole: what it believes of itself
 *   HOLD                      role_timeout: broker.daemon.roles.CommandSource, its hold
 *   age                       ticks since the command was started: asked_at of broker.routing.mirrored.OwnRole.on_word
 *   confirmed, is_confirmed   ticks since that of the last `principal`: broker.routing.mirrored.OwnRole.is_confirmed
 *   WAITING .. TAKING         broker.daemon.roles.RoleKeeper: between two questions, asking, hearing, taking over
 *   on_word()                 broker.routing.mirrored.OwnRole.on_word, ON_WORD
 *   step_down(), is_closing   broker.routing.mirrored.OwnRole.on_stepped_down, broker.daemon.roles.Hosting.close
 *   demote()                  broker.daemon.roles.RoleKeeper.on_demoted
 *   BEGUN                     broker.store.sqlite.transaction.check_epoch, inside of a transaction
 *   SEEN                      broker.store.sqlite.transaction.commit has looked at the clock
 *   WRITTEN                   ... and COMMIT is over; broker.store.sqlite.write_batch.SqliteStore.write_in_writer looks again,
 *                             and broker.dialog.endpoint.Endpoint before it answers
 *   file, is_replaced         the file of a partner, and that its path leads to another: broker.store.sqlite.database.FileWatch
 *   CLAIM, DENIAL             PROBE_REPLY: docs/protocol.md. Here a question is answered at once; model/mirror.pml asks it
 *                             over the network. What a partner tells by itself, and ACCEPT, are on their way
 *   ACCEPT                    ACK
 *
 * Checked: nothing is stored by a partner once another one is named, and none claims to be the principal; what is
 * acknowledged is in the file of whoever was named last, at any time; nothing is there twice; and everything arrives
 * once nobody stands still, fails over, crashes or is cut off any more.
 */

#ifndef MESSAGES
#define MESSAGES 1
#endif
#ifndef HOLD
#define HOLD 1
#endif
#ifndef FAILOVERS
#define FAILOVERS 1
#endif
#ifndef SLOW
#define SLOW 2
#endif
#ifndef FAILURES
#define FAILURES 0      /* answers of the command that say nothing */
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef CUTS
#define CUTS 0
#endif

/* 1: a partner may stand still between its last look at the clock and the end of COMMIT, which is a limit that the
   documentation tells. Then it stores what it must not (2: that is not looked at), and nothing else may go wrong. */
#ifndef IS_STOPPED_IN_COMMIT
#define IS_STOPPED_IN_COMMIT 0
#endif

/* Faults of the product that the checks must find: 1 no look at the clock before COMMIT; 2 none behind it; 3 a role is
   held from the answer instead of from the question; 4 who steps down goes on until its file is closed; 5 acknowledged
   before it is written; 6 places are not compared; 7 who has lapsed claims to be the principal; 8 a refusal changes
   nothing, and nobody tells that it steps down. */
#ifndef FAULT
#define FAULT 0
#endif

/* Faults of whoever decides and copies: 1 another one is named without a copy; 2 the copy is made before the former one
   has stopped; 3 another one is named before role_timeout is over; 4 when the former one is no principal, though an
   answer that says `principal` is on its way to it. */
#ifndef DISORDER
#define DISORDER 0
#endif

#include "standing.pml"

mtype = { CLAIM, DENIAL, ACCEPT };
mtype = { WAITING, ASKING, ANSWERED, TAKING };
mtype = { SAYS_PRINCIPAL, SAYS_MIRROR, SAYS_NOTHING };
mtype = { NO_TURN, BEGUN, SEEN, WRITTEN };

#define NOBODY 2
#define LAPSED (HOLD + 1)

chan to[2] = [1] of { byte };                   /* a frame: its sequence */
chan from[2] = [1] of { mtype, byte };          /* CLAIM, epoch; DENIAL; ACCEPT, next */

typedef File { byte stored; byte rows; byte epoch };
File file[2];

/* of a partner */
bit role[2], is_open[2], is_replaced[2], tells[2];
byte epoch[2];
byte confirmed[2] = LAPSED;
mtype keeper[2] = ASKING;
mtype word[2] = SAYS_NOTHING;
byte age[2];
mtype turn[2] = NO_TURN;
byte number[2];

/* of the arbiter */
byte named = 0;         /* whom it answers `principal`; NOBODY */
byte last = 0;          /* who was named last, and whose file is the one that counts */
byte since = 0;         /* ticks since it answered `principal` */
bit knows_mirror = 0;   /* that one has heard `mirror` behind its last `principal`, or is gone */
byte failovers = FAILOVERS;

byte slow = SLOW, failures = FAILURES, crashes = CRASHES, cuts = CUTS;
byte standing = ASKING_BOTH, believed = 0, acked = 0;

#define is_done (acked == MESSAGES)
#define is_confirmed(who) (confirmed[who] <= HOLD)
#define claims(who) (role[who] && (is_confirmed(who) || FAULT == 7))
#define is_closing(who) (is_open[who] && !role[who])
#define is_busy(who) ((keeper[who] != WAITING) || turn[who] != NO_TURN || is_closing(who))

inline step_down() {
    role[me] = 0; tells[me] = 1;
    if
    :: FAULT != 4 -> confirmed[me] = LAPSED
    :: FAULT == 4 -> skip
    fi
}

/* The store has found that the role is not confirmed: the question that is under way is given up. */
inline demote() {
    turn[me] = NO_TURN; number[me] = 0;
    if
    :: role[me] -> step_down(); keeper[me] = WAITING; word[me] = SAYS_NOTHING; age[me] = 0
    :: else
    fi
}

inline confirm() {
    if
    :: FAULT == 3 -> confirmed[me] = 0
    :: else -> confirmed[me] = age[me]
    fi
}

inline on_word() {
    keeper[me] = WAITING;
    if
    :: age[me] > HOLD && FAULT != 3 -> word[me] = SAYS_NOTHING    /* too late */
    :: else
    fi;
    if
    :: role[me] && !is_confirmed(me) -> step_down()
    :: role[me] && is_confirmed(me) && word[me] == SAYS_PRINCIPAL -> confirm()
    :: role[me] && is_confirmed(me) && word[me] == SAYS_MIRROR -> step_down()
    :: !role[me] && word[me] == SAYS_PRINCIPAL -> confirm(); keeper[me] = TAKING
    :: else
    fi;
    if
    :: word[me] == SAYS_MIRROR && last == me -> knows_mirror = 1
    :: else
    fi;
    word[me] = SAYS_NOTHING; age[me] = 0
}

/* The keeper of a role: one task. The question is answered where the command looks, at any moment before it is heard. */
proctype Keep(bit me) {
end:
    do
    :: atomic {
        keeper[me] == ASKING ->
        keeper[me] = ANSWERED;
        if
        :: named == me -> word[me] = SAYS_PRINCIPAL; since = 0; knows_mirror = 0
        :: named != me && role[me] -> word[me] = SAYS_MIRROR
        :: named != me && !role[me] ->          /* it hears what it is already */
            keeper[me] = WAITING; age[me] = 0;
            if
            :: last == me -> knows_mirror = 1
            :: else
            fi
        :: failures > 0 -> failures--; word[me] = SAYS_NOTHING
        fi
    }
    :: atomic { keeper[me] == ANSWERED -> on_word() }
    :: atomic {
        keeper[me] == TAKING ->     /* no clock is looked at: it writes its epoch, and nothing else */
        file[me].epoch++;
        epoch[me] = file[me].epoch; role[me] = 1; is_open[me] = 1; tells[me] = 1;
        keeper[me] = ASKING; age[me] = 0
    }
    :: atomic {
        is_closing(me) && turn[me] == NO_TURN ->
        is_open[me] = 0; is_replaced[me] = 0; epoch[me] = 0; confirmed[me] = LAPSED
    }
    od
}

inline write() {
    turn[me] = WRITTEN;
    if
    :: is_replaced[me] -> skip      /* nobody will find it there */
    :: !is_replaced[me] && number[me] == file[me].stored && FAULT != 5 ->
        assert(last == me || IS_STOPPED_IN_COMMIT == 2);
        file[me].stored++; file[me].rows++
    :: !is_replaced[me] && number[me] != file[me].stored && FAULT == 6 -> file[me].rows++
    :: else                         /* a duplicate: acknowledged again */
    fi;
    assert(file[me].rows == file[me].stored);
    if
    :: FAULT == 5 -> number[me]++
    :: else -> number[me] = file[me].stored
    fi
}

/* The prober hears a claim to be the principal. */
inline weigh(who, its_epoch) {
    if
    :: its_epoch > believed -> believed = its_epoch; hear(who, CLAIMS_HIGHER)
    :: its_epoch == believed -> hear(who, CLAIMS_EQUAL)
    :: its_epoch < believed -> hear(who, CLAIMS_LOWER)
    fi
}

/* It is asked, and answers at once. */
proctype Answer(bit me) {
end:
    do
    :: atomic {
        is_asking && !tells[me] && empty(from[me]) ->
        assert(!claims(me) || last == me);
        if
        :: claims(me) -> weigh(me, epoch[me])
        :: else -> hear(me, DENIES)
        fi
    }
    od
}

/* Its database, and what it tells. */
proctype Serve(bit me) {
end:
    do
    :: atomic {
        tells[me] && nfull(from[me]) ->
        tells[me] = 0;
        assert(!claims(me) || last == me);
        if
        :: claims(me) -> from[me] ! CLAIM, epoch[me]
        :: !claims(me) && FAULT != 8 -> from[me] ! DENIAL, 0
        :: !claims(me) && FAULT == 8 -> skip
        fi
    }
    :: atomic {                                 /* it refuses, and is asked, and answers */
        to[me] ? [_] && !role[me] && !tells[me] && empty(from[me]) ->
        to[me] ? _;
        if
        :: FAULT != 8 -> hear(me, DENIES)
        :: FAULT == 8 -> skip
        fi
    }
    :: atomic {
        to[me] ? [_] && role[me] && turn[me] == NO_TURN ->
        to[me] ? number[me];
        if
        :: is_confirmed(me) && !is_replaced[me] -> turn[me] = BEGUN
        :: is_confirmed(me) && is_replaced[me] -> number[me] = 0        /* the store fails */
        :: !is_confirmed(me) -> demote()
        fi
    }
    :: atomic {
        turn[me] == BEGUN ->
        if
        :: (is_confirmed(me) || FAULT == 1) && IS_STOPPED_IN_COMMIT -> turn[me] = SEEN
        :: (is_confirmed(me) || FAULT == 1) && !IS_STOPPED_IN_COMMIT -> write()
        :: else -> demote()
        fi
    }
    :: atomic { turn[me] == SEEN -> write() }
    :: atomic {
        turn[me] == WRITTEN && nfull(from[me]) ->
        if
        :: (is_confirmed(me) && !is_replaced[me]) || FAULT == 2 ->
            from[me] ! ACCEPT, number[me];
            turn[me] = NO_TURN; number[me] = 0
        :: is_confirmed(me) && is_replaced[me] && FAULT != 2 -> turn[me] = NO_TURN; number[me] = 0
        :: !is_confirmed(me) && FAULT != 2 -> demote()
        fi
    }
    :: atomic { turn[me] == WRITTEN && is_closing(me) -> turn[me] = NO_TURN; number[me] = 0 }
    od
}

inline copy() {
    file[1 - last].stored = file[last].stored;
    file[1 - last].rows = file[last].rows;
    file[1 - last].epoch = file[last].epoch;
    is_replaced[1 - last] = is_open[1 - last]
}

#define is_released ((since > HOLD) || (knows_mirror && !role[last]) || DISORDER == 3 || (DISORDER == 4 && !role[last]))

/* Whoever decides, and copies. */
proctype Arbiter() {
end:
    do
    :: atomic {
        failovers > 0 && named != NOBODY ->
        failovers--; named = NOBODY;
        if
        :: DISORDER == 2 -> copy()
        :: else
        fi
    }
    :: atomic { named == NOBODY && is_released ->
        if
        :: DISORDER != 1 && DISORDER != 2 -> copy()
        :: else
        fi;
        last = 1 - last; named = last; since = 0; knows_mirror = 1;
        assert(acked <= file[last].stored)
    }
    od
}

#define older(it) (it <= HOLD -> it + 1 : it)

inline grow(who) {
    if
    :: keeper[who] == WAITING && !is_closing(who) -> keeper[who] = ASKING
    :: keeper[who] == WAITING && (is_closing(who) || is_slow)    /* it stands still */
    :: keeper[who] != WAITING -> age[who] = older(age[who])
    fi
}

/* Time. It passes while partners have something to do only when they are slow. */
proctype Tick() {
    bit is_slow = 0;
end:
    do
    :: atomic {
        (!is_busy(0) && !is_busy(1)) || (slow > 0 && (!is_busy(0) || !is_busy(1))) ->
        if
        :: is_busy(0) || is_busy(1) -> slow--; is_slow = 1
        :: else
        fi;
        since = older(since);
        confirmed[0] = older(confirmed[0]); confirmed[1] = older(confirmed[1]);
        grow(0); grow(1); is_slow = 0
    }
    od
}

inline cut(who) {
    do
    :: to[who] ? _
    :: empty(to[who]) -> break
    od;
    do
    :: from[who] ? _, _
    :: empty(from[who]) -> break
    od;
    hear(who, LOST)
}

proctype Crash(bit me) {
end:
    do
    :: atomic {
        crashes > 0 -> crashes--;
        role[me] = 0; is_open[me] = 0; is_replaced[me] = 0; tells[me] = 0; epoch[me] = 0; confirmed[me] = LAPSED;
        keeper[me] = ASKING; word[me] = SAYS_NOTHING; age[me] = 0; turn[me] = NO_TURN; number[me] = 0;
        if :: last == me -> knows_mirror = 1 :: else fi;
        cut(me)
    }
    :: atomic { cuts > 0 -> cuts--; cut(me) }
    od
}

/* The prober hears what one of them says. */
proctype Hear(bit which) {
    byte found = 0;
end:
    do
    :: atomic { from[which] ? [CLAIM, _] -> from[which] ? CLAIM, found; weigh(which, found); found = 0 }
    :: atomic { from[which] ? [DENIAL, _] -> from[which] ? DENIAL, _; hear(which, DENIES) }
    :: atomic {
        from[which] ? [ACCEPT, _] -> from[which] ? ACCEPT, found;
        assert(found <= file[last].stored);     /* what is acknowledged is in the file that counts */
        if
        :: found > acked -> acked = found
        :: else
        fi;
        found = 0
    }
    od
}

/* The prober sends the first message that is not acknowledged, to whom it takes for the principal. */
proctype Send(bit which) {
end:
    do
    :: atomic { is_principal_of(which) && !is_done && nfull(to[which]) -> to[which] ! acked }
    od
}

init {
    atomic {
        run Keep(0); run Keep(1);
        run Serve(0); run Serve(1);
        run Answer(0); run Answer(1);
        run Hear(0); run Hear(1);
            run Send(0); run Send(1);
        run Arbiter();
        run Tick();
        run Crash(0); run Crash(1)
    }
}

ltl all_arrives { <> is_done }
