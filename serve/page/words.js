// What the page says, in English and in Chinese.

const words = {
  en: {
    title: 'Leasehold', language: '中文', signIn: 'Token', enter: 'Enter', search: 'Search', prefix: 'Prefix', order: 'Order',
    byName: 'name', byWaiters: 'most waiters', byLeft: 'soonest deadline', none: 'Nothing is held, and nobody waits, of what you asked for and may view.',
    contended: 'Most waited for', ends: 'Last ends', back: '← All locks', holders: 'Holders', waiters: 'Waiters, in order',
    history: 'History, since this page was opened', evictTitle: 'Evict this holder?', reason: 'Reason', cancel: 'Cancel', evict: 'Evict',
    evictWhat: 'Its lease ends now. It is told, as a lost lease is, and may take a moment to stop.', typeName: 'Type the name of the lock',
    connecting: 'connecting …', live: 'live', signInNeeded: 'a token is needed', notAllowed: 'not allowed',
    unknown: (s) => `UNKNOWN: no answer for ${s}. What is shown was true then; nothing is known to be free.`,
    unknownState: 'unknown', free: 'free', held: 'held', kept: 'kept free by its last holder', count: (shown, all) => `${shown} of ${all}`,
    countMore: (shown, all) => shown === all ? `the first ${all}` : `${shown} of the first ${all}`, more: 'Show more', onlyFirst: 'There may be more. Search, order and “most waited for” know only those that are loaded; a prefix asks the store.',
    left: (s) => `${s} left`, over: 'past its deadline', since: (s) => `since ${s}`, token: (t) => `token ${t}`, waits: (n) => `${n} waiting`,
    waitsFor: (s) => `waits for ${s}`, stopped: (s) => `renewals stopped ${s} ago`, shared: 'shared', exclusive: 'exclusive',
    granted: 'granted', released: 'released', evicted: 'evicted', ended: 'ended: expired, or ended elsewhere', ago: (s) => `${s} ago`,
    damaged: (text) => `The store is damaged: ${text}`, evictDone: 'Evicted.', evictLost: 'Its lease had already ended.',
    evictUnknown: 'Unknown: it may have been evicted. Look again before you repeat it.', noNote: 'no note',
    units: ['ms', 's', 'min', 'h', 'd']
  },
  zh: {
    title: 'Leasehold', language: 'English', signIn: '令牌', enter: '进入', search: '搜索', prefix: '前缀', order: '排序',
    byName: '名称', byWaiters: '等待者最多', byLeft: '最早到期', none: '在所查询且有权查看的范围内，没有锁被持有，也没有人在等待。',
    contended: '争用最多', ends: '最近结束', back: '← 所有锁', holders: '持有者', waiters: '等待者（按顺序）',
    history: '历史（自本页打开以来）', evictTitle: '驱逐此持有者？', reason: '原因', cancel: '取消', evict: '驱逐',
    evictWhat: '其租约立即结束。持有者会像丢失租约一样得到通知，可能需要片刻才停下。', typeName: '请输入锁的名称',
    connecting: '正在连接……', live: '实时', signInNeeded: '需要令牌', notAllowed: '无权限',
    unknown: (s) => `状态未知：已有 ${s} 没有应答。下面是当时的状态，不代表任何锁已空闲。`,
    unknownState: '未知', free: '空闲', held: '已被持有', kept: '由上一持有者保留', count: (shown, all) => `${shown} / ${all}`,
    countMore: (shown, all) => shown === all ? `前 ${all} 个` : `${shown} / 前 ${all} 个`, more: '显示更多', onlyFirst: '可能还有更多锁。搜索、排序和“争用最多”只涉及已加载的部分；前缀由存储查询。',
    left: (s) => `剩余 ${s}`, over: '已过期限', since: (s) => `已持有 ${s}`, token: (t) => `令牌 ${t}`, waits: (n) => `${n} 个等待`,
    waitsFor: (s) => `已等待 ${s}`, stopped: (s) => `续约已停止 ${s}`, shared: '共享', exclusive: '独占',
    granted: '获得', released: '释放', evicted: '被驱逐', ended: '结束：过期，或在别处结束', ago: (s) => `${s}前`,
    damaged: (text) => `存储已损坏：${text}`, evictDone: '已驱逐。', evictLost: '其租约已经结束。',
    evictUnknown: '结果未知：可能已被驱逐。重复之前请再看一次。', noNote: '无备注',
    units: ['毫秒', '秒', '分', '小时', '天']
  }
}

let language = (localStorage.getItem('language') ?? navigator.language).startsWith('zh') ? 'zh' : 'en'

/** A word, or a sentence made of values. */
export function say (word, ...values) {
  const text = words[language][word]
  return typeof text === 'function' ? text(...values) : text
}

/** Writes the words of the page's own text. */
export function translate () {
  document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en'
  for (const e of document.querySelectorAll('[data-word]')) e.textContent = say(e.dataset.word)
  document.getElementById('language').textContent = say('language')
}

export function otherLanguage () {
  language = language === 'zh' ? 'en' : 'zh'
  localStorage.setItem('language', language)
  translate()
}

/** A length of time for people. */
export function time (ms) {
  const [, s, min, h, d] = words[language].units
  const seconds = Math.max(Math.round(ms / 1000), 0)
  if (seconds < 60) return `${seconds} ${s}`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} ${min} ${seconds % 60} ${s}`
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} ${h} ${Math.floor(seconds % 3600 / 60)} ${min}`
  return `${Math.floor(seconds / 86400)} ${d} ${Math.floor(seconds % 86400 / 3600)} ${h}`
}
